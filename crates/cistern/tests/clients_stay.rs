//! Clients that reconnect by themselves when the daemon is killed (QEMU, nbdkit, programs with libnbd) lose nothing that was
//! acknowledged. `cargo xtask soak --clients-stay` is the same with hundreds of kills.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        atomic::{AtomicBool, Ordering::SeqCst},
        mpsc,
    },
    thread,
};

use cistern_harness::{
    nbd::{Client, Dialect},
    pidfile::PidFile,
    scratch::Scratch,
    serve::Cistern,
    stays::kill_under_a_client_that_stays,
    tool,
};

const BLOCK: u64 = 4096;

/// Every acknowledged WRITE, TRIM and WRITE_ZEROES is there after a kill -9, with 1, 32 and 128 requests in flight and no FLUSH before the
/// kill; whether the client sends one after it has reconnected changes nothing.
#[test]
fn what_was_acknowledged_survives_the_daemon() {
    const DEPTHS: [usize; 3] = [1, 32, 128];
    let scratch = Scratch::new("stays").expect("a directory");
    let cistern = Cistern::under_test(env!("CARGO_BIN_EXE_cistern"));
    let url = scratch.file("tank").display().to_string();
    let serve = cistern.serve(&scratch, url).args(["--create", "64M", "--max-dirty-age", "1h"]);
    let seen =
        kill_under_a_client_that_stays(&serve, 2 * DEPTHS.len() as u64, &DEPTHS, 1).expect("it was served");
    assert_eq!(
        seen.lost,
        Vec::<String>::new(),
        "{} acknowledgements, {} kills",
        seen.acknowledged,
        seen.kills
    );
}

/// nbdkit's filter `retry` goes on with the next daemon, and its own clients notice nothing: each write that was answered is there.
#[test]
fn nbdkit_goes_on_with_the_next_daemon() {
    const KILLS: usize = 3;
    let scratch = Scratch::new("stays-nbdkit").expect("a directory");
    let cistern = Cistern::under_test(env!("CARGO_BIN_EXE_cistern"));
    let url = scratch.file("tank").display().to_string();
    let serve = cistern.serve(&scratch, url).args(["--create", "64M", "--max-dirty-age", "1h"]);
    let mut server = serve.start().expect("it serves");
    let (pid_file, socket) =
        (PidFile::new(&scratch, "nbdkit").expect("a directory"), scratch.socket("nbdkit"));
    let mut nbdkit = tool::command("nbdkit").expect("it is installed");
    nbdkit.args(["--foreground", "--filter=retry"]);
    nbdkit.arg("--pidfile").arg(pid_file.path()).arg("--unix").arg(&socket);
    nbdkit.args(["nbd", &format!("uri={}", server.uri())]);
    nbdkit.args(["retries=100", "retry-delay=1", "retry-exponential=no"]);
    let _nbdkit = pid_file.start(&scratch, nbdkit).expect("it serves");
    let (is_over, (told, answered)) = (AtomicBool::new(false), mpsc::channel());
    let newest: Vec<BTreeMap<u64, u8>> = thread::scope(|scope| {
        let (socket, is_over) = (&socket, &is_over);
        let clients: Vec<_> = (0..4)
            .map(|client| {
                let told = told.clone();
                scope.spawn(move || writes(socket, client, is_over, &told))
            })
            .collect();
        drop(told);
        for _ in 0..KILLS {
            // Each was answered by the daemon that runs, as those before were by then.
            answered.iter().take(500).for_each(drop);
            server.kill_now();
            while answered.try_recv().is_ok() {}
            server = serve.start().expect("it serves again");
        }
        answered.iter().take(500).for_each(drop);
        is_over.store(true, SeqCst);
        clients.into_iter().map(|client| client.join().expect("no error came through")).collect()
    });
    server.kill();
    let server = serve.start().expect("it serves again");
    let mut reader = Client::connect(server.socket(), "", Dialect::Simple).expect("connected");
    for (block, tag) in newest.iter().flatten() {
        let found = reader.read(block * BLOCK, BLOCK as u32).expect("read");
        assert!(found.iter().all(|byte| byte == tag), "block {block}: {} and not {tag}", found[0]);
    }
    server.stop().expect("it stops");
}

/// Writes blocks of its own, one after the other, and says when each was answered, until the test is over. Gives what each shows.
fn writes(socket: &Path, client: u64, is_over: &AtomicBool, told: &mpsc::Sender<()>) -> BTreeMap<u64, u8> {
    let mut nbd = Client::connect(socket, "", Dialect::Simple).expect("connected");
    let mut newest = BTreeMap::new();
    for n in 0_u64.. {
        if is_over.load(SeqCst) {
            break;
        }
        let (block, tag) = (n * 7 % 1000 * 4 + client, (n % 251) as u8);
        nbd.write(block * BLOCK, &[tag; BLOCK as usize]).expect("written");
        newest.insert(block, tag);
        told.send(()).expect("the test waits for all");
    }
    newest
}

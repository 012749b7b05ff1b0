//! Clients that reconnect by themselves when the daemon is killed (QEMU, nbdkit, programs with libnbd) lose nothing that was
//! acknowledged. `cargo xtask soak --clients-stay` is the same with hundreds of kills.

use cistern_harness::{scratch::Scratch, serve::Cistern, stays::kill_under_a_client_that_stays};

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

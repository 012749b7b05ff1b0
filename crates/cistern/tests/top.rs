//! `cistern top` on a terminal in memory: what it draws of a real load, what keys do, and that the terminal is as before when it ends.

mod daemon;

use std::{
    fs::File,
    io::{Read, Write},
    num::NonZero,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::{Child, Command, ExitStatus},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use daemon::Home;

/// How long something may take to be drawn.
const LIMIT: Duration = Duration::from_secs(600);

/// A program on a terminal of its own.
struct OnTerminal {
    child: Child,
    /// The end of who sits there.
    keys: File,
    /// The program's end, kept open to see how it leaves that.
    theirs: File,
    before: libc::termios,
    screen: Arc<(Mutex<vt100::Parser>, Condvar)>,
}

fn size(rows: u16, columns: u16) -> libc::winsize {
    libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

fn some(cells: u16) -> NonZero<u16> {
    NonZero::new(cells).expect("a terminal has cells")
}

fn mode(terminal: &File) -> libc::termios {
    // SAFETY: zeros are a termios, and the call fills it in for a descriptor that is open.
    unsafe {
        let mut found: libc::termios = std::mem::zeroed();
        assert_eq!(libc::tcgetattr(terminal.as_raw_fd(), &mut found), 0);
        found
    }
}

impl OnTerminal {
    fn start(mut command: Command, rows: u16, columns: u16) -> OnTerminal {
        let (mut ours, mut theirs, size) = (0, 0, size(rows, columns));
        let none = std::ptr::null_mut();
        // SAFETY: the call fills in two descriptors, which are owned from here on.
        let (mut keys, theirs) = unsafe {
            assert_eq!(libc::openpty(&mut ours, &mut theirs, none, none.cast(), &size), 0);
            (File::from(OwnedFd::from_raw_fd(ours)), File::from(OwnedFd::from_raw_fd(theirs)))
        };
        let end = || theirs.try_clone().expect("a descriptor");
        command.stdin(end()).stdout(end()).stderr(end()).env("TERM", "xterm-256color");
        // SAFETY: both calls are allowed between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                libc::ioctl(0, libc::TIOCSCTTY, 0);
                Ok(())
            });
        }
        let before = mode(&theirs);
        let child = command.spawn().expect("the binary runs");
        let screen = Arc::new((Mutex::new(vt100::Parser::new(some(rows), some(columns), 0)), Condvar::new()));
        let (drawn, mut output) = (screen.clone(), keys.try_clone().expect("a descriptor"));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                drawn.0.lock().expect("held for a moment").process(&bytes[..count]);
                drawn.1.notify_all();
            }
        });
        keys.flush().expect("a terminal");
        OnTerminal { child, keys, theirs, before, screen }
    }

    /// Waits until the screen is as it should be.
    fn wait(&self, what: &str, is_so: impl Fn(&vt100::Screen) -> bool) {
        let (parser, changed) = &*self.screen;
        let parser = parser.lock().expect("held for a moment");
        let waited = changed.wait_timeout_while(parser, LIMIT, |parser| !is_so(parser.screen()));
        let (parser, waited) = waited.expect("held for a moment");
        assert!(!waited.timed_out(), "not seen: {what}\n{}", parser.screen().contents());
    }

    fn wait_for(&self, text: &str) {
        self.wait(text, |screen| screen.contents().contains(text));
    }

    fn press(&mut self, keys: &[u8]) {
        self.keys.write_all(keys).expect("a terminal");
    }

    fn resize(&self, rows: u16, columns: u16) {
        self.screen.0.lock().expect("held for a moment").screen_mut().set_size(some(rows), some(columns));
        // SAFETY: the call reads a winsize that lives through it.
        let rc = unsafe { libc::ioctl(self.keys.as_raw_fd(), libc::TIOCSWINSZ, &size(rows, columns)) };
        assert_eq!(rc, 0);
    }

    fn signal(&self, signal: i32) {
        // SAFETY: a signal to a child that was not waited for yet.
        assert_eq!(unsafe { libc::kill(self.child.id() as libc::pid_t, signal) }, 0);
    }

    /// Waits for its end; the terminal has to be as before.
    fn end(mut self) -> ExitStatus {
        let status = self.child.wait().expect("a child");
        self.wait("the end of drawing", |screen| !screen.alternate_screen() && !screen.hide_cursor());
        let after = mode(&self.theirs);
        assert_eq!(
            (after.c_lflag, after.c_iflag, after.c_oflag),
            (self.before.c_lflag, self.before.c_iflag, self.before.c_oflag)
        );
        status
    }
}

/// Ends a load, also where a test fails.
struct IsOver<'a>(&'a AtomicBool);

impl Drop for IsOver<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What stands behind a word on the screen.
fn behind(screen: &vt100::Screen, word: &str) -> Option<String> {
    let contents = screen.contents();
    let rest = contents.split_once(word)?.1;
    rest.split_whitespace().next().map(str::to_owned)
}

fn is_coloured(screen: &vt100::Screen) -> bool {
    let (rows, columns) = screen.size();
    let (rows, columns) = (rows.get(), columns.get());
    let mut cells = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
    cells.any(|(row, column)| {
        screen.cell(row, column).is_some_and(|cell| cell.fgcolor() != vt100::Color::Default)
    })
}

/// On 80 x 24 cells all ten panels show a load while it lasts, and that it is over; that the daemon is gone is told, and the next one is found. At
/// its end the terminal is as before.
#[test]
fn a_real_load_is_seen() {
    let home = Home::new();
    let serve = ["./vol", "--create", "64M"];
    let daemon = home.start(&serve);
    let mut top = OnTerminal::start(home.command(&["top"]), 24, 80);
    top.wait_for("YES: everything is in the store");
    for title in [
        "1 safe to disconnect?",
        "2 throughput",
        "3 requests/s",
        "4 latency",
        "5 journal",
        "6 cache",
        "7 space",
        "8 requests and money",
        "9 store",
        "10 snapshots",
    ] {
        top.wait_for(title);
    }
    let figure = |screen: &vt100::Screen, word: &str| {
        behind(screen, word).is_some_and(|figure| !["0", "-"].contains(&&*figure))
    };
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0;
            while !over.load(Ordering::Relaxed) {
                round = (round + 1) % 250;
                daemon.fill(round, 0, 1 << 20);
            }
        });
        let _over = IsOver(&over);
        top.wait("a rate of writes", |screen| figure(screen, " write ") && figure(screen, " flush "));
        top.wait("dirty bytes", |screen| figure(screen, "NO: ") && screen.contents().contains("uploading"));
        top.wait("a picture", |screen| screen.contents().contains('█'));
        top.wait("a latency", |screen| {
            screen
                .contents()
                .lines()
                .any(|line| line.contains("w ") && line.contains('/') && line.contains("0."))
        });
    });
    top.wait("that it is over", |screen| behind(screen, " write ").as_deref() == Some("0"));
    home.ok(&["drain", "./vol"]);
    top.wait_for("YES: everything is in the store");
    daemon.kill();
    top.wait_for("THE DAEMON HAS ENDED");
    let daemon = home.start(&serve);
    top.wait("the next daemon", |screen| screen.contents().contains("1 volumes, 1 daemons"));
    top.press(b"q");
    assert_eq!(top.end().code(), Some(0));
    daemon.stop();
}

/// Keys choose the volume and the time; help comes and goes; another size of the terminal is drawn in, and one that is too small says so.
#[test]
fn keys_and_sizes() {
    let home = Home::new();
    home.ok(&["create", "./one", "--size", "64M"]);
    home.ok(&["create", "./two", "--size", "64M"]);
    let daemon = home.start(&["./one", "./two"]);
    let mut top = OnTerminal::start(home.command(&["top"]), 24, 80);
    top.wait_for("> one");
    top.wait("a colour", is_coloured);
    top.press(b"\x1b[B");
    top.wait_for("> two");
    top.press(b"k");
    top.wait_for("> one");
    top.press(b"\x1b[C");
    top.wait_for("columns: 10 seconds");
    top.press(b"?");
    top.wait_for("another volume");
    top.press(b"?");
    top.wait("no help", |screen| !screen.contents().contains("another volume"));
    top.resize(40, 120);
    top.wait("the last line", |screen| {
        screen.contents().lines().nth(39).is_some_and(|line| line.starts_with("q quit"))
    });
    top.resize(12, 60);
    top.wait_for("have room for the panels");
    top.press(b"\x03");
    assert_eq!(top.end().code(), Some(0));

    let mut command = home.command(&["top"]);
    command.env("NO_COLOR", "1");
    let top = OnTerminal::start(command, 24, 80);
    top.wait_for("10 snapshots");
    top.wait("no colour", |screen| !is_coloured(screen) && screen.contents().contains("clean"));
    top.signal(libc::SIGTERM);
    assert_eq!(top.end().code(), Some(0));
    daemon.stop();
}

/// Where nobody serves it waits for somebody, and shows him when he comes.
#[test]
fn nobody_serves_yet() {
    let home = Home::new();
    let mut top = OnTerminal::start(home.command(&["top"]), 24, 80);
    top.wait_for("no daemon is running");
    let daemon = home.start(&["./vol", "--create", "64M"]);
    top.wait_for("> vol");
    top.press(b"\x1b");
    assert_eq!(top.end().code(), Some(0));
    daemon.stop();
}

/// Without a terminal it says what to use instead.
#[test]
fn without_a_terminal() {
    let said = Home::new().fails(2, &["top"]);
    assert!(said.contains("draws on a terminal") && said.contains("cistern status --io --watch"), "{said}");
}

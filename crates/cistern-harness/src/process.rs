//! A child process that cannot outlive its owner.
//!
//! A [`Guard`] kills and reaps its process on drop, and the kernel kills the process when the
//! thread that started it ends without a drop. Waiting is on a pidfd, with a limit: one in seconds of a machine that has nothing else to
//! do ([`Limit`]), so that a busy one makes nobody hang.

use std::{
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::{Child, Command, ExitStatus},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

/// A limit is looked at again after so long: then the machine may be busier.
const LOOK: Duration = Duration::from_secs(1);

/// How long something may take before it counts as hung, in seconds of a machine that does nothing else: while more programs want to run than
/// there are processors, each gets a part of one, and so much less of the limit passes.
#[derive(Debug)]
pub struct Limit {
    left: Duration,
    looked: Instant,
}

impl Limit {
    pub fn new(limit: Duration) -> Limit {
        Limit { left: limit, looked: Instant::now() }
    }

    /// For how long to wait before this is asked again; `None` when the limit is over.
    pub fn next_wait(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let passed = now.saturating_duration_since(std::mem::replace(&mut self.looked, now));
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        self.left = self.left.saturating_sub(passed.mul_f64(share(&load, processors)));
        (!self.left.is_zero()).then(|| self.left.clamp(Duration::from_millis(1), LOOK))
    }
}

/// The part of a processor that a program gets, by the kernel's `/proc/loadavg`: those that ran or waited for the disk in the last minute, or
/// what is runnable just now, whichever is more.
fn share(load: &str, processors: usize) -> f64 {
    let mut words = load.split([' ', '/']);
    let minute = words.next().and_then(|word| word.parse::<f64>().ok());
    let now = words.nth(2).and_then(|word| word.parse::<f64>().ok());
    let busy = minute.unwrap_or(0.0).max(now.unwrap_or(0.0));
    (processors as f64 / busy.max(1.0)).min(1.0)
}

/// A running process of ours.
pub struct Guard {
    child: Child,
    pidfd: OwnedFd,
    ended: Option<ExitStatus>,
}

impl Guard {
    /// Starts a process that dies with the calling thread.
    pub fn spawn(mut command: Command) -> Result<Guard> {
        // SAFETY: prctl is async-signal-safe and touches no memory of the parent.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        // SAFETY: a system call without pointers; the descriptor it gives is ours alone.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, child.id() as libc::pid_t, 0) };
        if fd < 0 {
            bail!("pidfd_open: {}", std::io::Error::last_os_error());
        }
        // SAFETY: `fd` was just opened and nobody else owns it.
        let pidfd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        Ok(Guard { child, pidfd, ended: None })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A descriptor that becomes readable when the process ends.
    pub fn ended_fd(&self) -> i32 {
        self.pidfd.as_raw_fd()
    }

    /// Sends a signal; fine if the process has ended.
    pub fn signal(&self, signal: i32) {
        // SAFETY: the pidfd names our child, even when it has ended already.
        unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                self.pidfd.as_raw_fd(),
                signal,
                std::ptr::null::<libc::siginfo_t>(),
                0,
            )
        };
    }

    /// Waits for the end of the process; after `limit` it is killed and the wait fails.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        if let Some(status) = self.ended {
            return Ok(status);
        }
        if !readable_within(&[self.ended_fd()], &mut Limit::new(limit))?[0] {
            self.kill();
            bail!("did not end within {} s of an idle machine and was killed", limit.as_secs());
        }
        let status = self.child.wait()?;
        self.ended = Some(status);
        Ok(status)
    }

    /// Whether the process has ended by now.
    pub fn has_ended(&mut self) -> bool {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
        }
        self.ended.is_some()
    }

    /// SIGKILL, and waits until the process is gone.
    pub fn kill(&mut self) {
        if self.ended.is_none() {
            self.signal(libc::SIGKILL);
            self.ended = self.child.wait().ok();
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Gives a process, and those it starts, mounts of their own: what they mount nobody else sees, and it is gone with the last of them.
pub fn own_mounts(command: &mut Command) {
    // SAFETY: both are system calls, async-signal-safe, and change the new process alone.
    unsafe {
        command.pre_exec(|| {
            let none = std::ptr::null();
            let own = libc::unshare(libc::CLONE_NEWNS) == 0
                && libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_PRIVATE, none.cast()) == 0;
            if own { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        });
    }
}

/// Kills every process that has this variable in its environment, which it has from who started it, or who started that; gives how many there were.
pub fn kill_marked(variable: &str, value: &str) -> usize {
    let mark = format!("{variable}={value}");
    let is_marked = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|entry| entry == mark.as_bytes())
    };
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_marked);
    // SAFETY: a system call without pointers.
    pids.filter(|pid| unsafe { libc::kill(*pid as libc::pid_t, libc::SIGKILL) } == 0).count()
}

/// Waits until one of the descriptors is readable or the limit is over; tells which are.
pub fn readable_within(fds: &[i32], limit: &mut Limit) -> Result<Vec<bool>> {
    while let Some(wait) = limit.next_wait() {
        let ready = readable(fds, wait)?;
        if ready.contains(&true) {
            return Ok(ready);
        }
    }
    Ok(vec![false; fds.len()])
}

/// Waits until one of the descriptors is readable or so much time is over; tells which are.
pub fn readable(fds: &[i32], limit: Duration) -> Result<Vec<bool>> {
    let end = Instant::now() + limit;
    let mut polls: Vec<libc::pollfd> =
        fds.iter().map(|&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
    loop {
        let left = end.saturating_duration_since(Instant::now()).as_millis().min(i32::MAX as u128) as i32;
        // SAFETY: `polls` is a valid array of its own length for the duration of the call.
        let rc = unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, left) };
        if rc >= 0 {
            return Ok(polls.iter().map(|p| p.revents != 0).collect());
        }
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(error).context("poll");
        }
    }
}

/// What the kernel says of a process: peak resident bytes and CPU time used so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    pub peak_resident_bytes: u64,
    /// What it has now.
    pub resident_bytes: u64,
    pub cpu: Duration,
}

/// Reads [`Usage`] of a running process.
pub fn usage(pid: u32) -> Result<Usage> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib = |name: &str| -> Result<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let number = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
        number.with_context(|| format!("no {name} in /proc status"))
    };
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after_name = stat.rsplit_once(')').context("no name in /proc stat")?.1;
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    // Counted from after the name: utime and stime are fields 14 and 15 of proc(5).
    let ticks: u64 =
        fields.get(11..13).context("short /proc stat")?.iter().flat_map(|f| f.parse::<u64>()).sum();
    // SAFETY: sysconf has no memory effects.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as u64;
    Ok(Usage {
        peak_resident_bytes: kib("VmHWM")? * 1024,
        resident_bytes: kib("VmRSS")? * 1024,
        cpu: Duration::from_millis(ticks * 1000 / per_second.max(1)),
    })
}

/// CPU time of this process, and of all of its children that ended.
pub fn own_cpu() -> (Duration, Duration) {
    let of = |who| {
        // SAFETY: rusage is plain numbers, for which zeroes are valid.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: `usage` is valid for writing during the call.
        unsafe { libc::getrusage(who, &mut usage) };
        let time =
            |t: libc::timeval| Duration::from_secs(t.tv_sec as u64) + Duration::from_micros(t.tv_usec as u64);
        time(usage.ru_utime) + time(usage.ru_stime)
    };
    (of(libc::RUSAGE_SELF), of(libc::RUSAGE_CHILDREN))
}

/// Makes the kernel forget the peak of a process, so that the next load has its own.
pub fn reset_peak(pid: u32) -> Result<()> {
    std::fs::write(format!("/proc/{pid}/clear_refs"), "5").context("clear_refs")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a limit passes what a program gets of a processor: all of the time while there are enough, less while more want to run.
    #[test]
    fn a_limit_passes_as_slowly_as_the_machine_works() {
        assert_eq!(share("0.50 9.00 9.00 1/400 77", 2), 1.0);
        assert_eq!(share("1.90 9.00 9.00 2/400 77", 2), 1.0);
        assert_eq!(share("20.00 1.00 1.00 3/400 77", 2), 0.1);
        assert_eq!(share("0.20 1.00 1.00 40/400 77", 2), 0.05, "they have only just begun");
        assert_eq!(share("", 2), 1.0);
        let mut limit = Limit::new(Duration::from_millis(1));
        while limit.next_wait().is_some() {
            std::thread::yield_now();
        }
    }

    /// What a process left behind is found by its environment, also where its parent is long gone; whoever was started otherwise is not.
    #[test]
    fn what_a_process_left_is_found() {
        let value = format!("{}/left", std::process::id());
        let started = |value: &str| {
            let mut command = Command::new("setsid");
            command.args(["--fork", "sleep", "1000"]).env("CISTERN_LEFT", value);
            assert!(command.status().expect("setsid").success());
        };
        let other = format!("{value}-other");
        started(&value);
        started(&other);
        let mut limit = Limit::new(Duration::from_secs(60));
        while kill_marked("CISTERN_LEFT", &value) == 0 {
            assert!(limit.next_wait().is_some(), "nothing is found");
        }
        assert_eq!(kill_marked("CISTERN_LEFT", &other), 1, "it was let be");
    }

    /// What a process with mounts of its own has mounted nobody else sees, and nothing is left of it when it was killed.
    #[test]
    fn mounts_of_its_own_are_gone_with_a_process() {
        let dir = tempfile::tempdir().expect("a directory");
        let script = "mount -t tmpfs none . && touch \"$PWD/inside\" && kill -KILL $$";
        let mut command = Command::new("sh");
        command.args(["-c", script]).current_dir(dir.path());
        own_mounts(&mut command);
        let status =
            Guard::spawn(command).and_then(|mut it| it.wait(Duration::from_secs(60))).expect("it runs");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGKILL));
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("text");
        assert!(!mounts.contains(dir.path().to_str().expect("text")), "{mounts}");
        assert!(!dir.path().join("inside").exists());
    }
}

//! Which process this is, in words that another one understands, on this host or another; and what became of a process that said so.
//!
//! Reads `/proc` and nothing else. What cannot be read is never taken for an answer.

use std::fs;

/// A process, as it says of itself. All of it is zero where the kernel does not tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessIdentity {
    /// Drawn by the kernel at each start of the machine.
    pub boot: [u8; 16],
    /// Of the installation (machine-id(5)); copies of an image may share it.
    pub machine: [u8; 16],
    /// Inode of its namespace of process numbers: inside, `pid` means one process.
    pub namespace: u64,
    pub pid: u32,
    /// When it started, in ticks since the start of the machine: tells it from a later process with the same number.
    pub started: u64,
    /// Name of the host, for people. ASCII letters, digits, `.`, `-` and `_`, at most [`HOST_BYTES_MAX`].
    pub host: String,
}

/// What became of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessFate {
    /// It has ended, or it is the one that asks.
    Ended,
    /// It runs on this host.
    Runs,
    /// It is or was a process of this kernel, in a namespace that cannot be looked into from here.
    Hidden,
    /// It is or was a process of another host, or did not say enough.
    Unknown,
}

/// Bytes of the longest name of a host.
pub const HOST_BYTES_MAX: usize = 64;

impl ProcessIdentity {
    /// The one that asks.
    pub fn this() -> ProcessIdentity {
        let pid = std::process::id();
        ProcessIdentity {
            boot: fs::read_to_string("/proc/sys/kernel/random/boot_id").map_or([0; 16], |id| uuid(&id)),
            machine: fs::read_to_string("/etc/machine-id").map_or([0; 16], |id| uuid(&id)),
            namespace: namespace().unwrap_or(0),
            pid,
            started: started(pid).unwrap_or(0),
            host: fs::read_to_string("/proc/sys/kernel/hostname")
                .map_or_else(|_| String::new(), |name| plain_host(&name)),
        }
    }

    /// What became of `other`, as far as this process can tell.
    pub fn fate_of(&self, other: &ProcessIdentity) -> ProcessFate {
        let known = |id: &[u8; 16]| id.iter().any(|&byte| byte != 0);
        if !known(&self.boot) || !known(&other.boot) {
            return ProcessFate::Unknown;
        }
        if self.boot != other.boot {
            // The same machine, which was started again since.
            let is_here = known(&self.machine) && self.machine == other.machine && self.host == other.host;
            return if is_here { ProcessFate::Ended } else { ProcessFate::Unknown };
        }
        if self.namespace == 0 || self.namespace != other.namespace || other.started == 0 {
            return ProcessFate::Hidden;
        }
        if (self.pid, self.started) == (other.pid, other.started) {
            return ProcessFate::Ended;
        }
        match started(other.pid) {
            Some(started) if started == other.started => ProcessFate::Runs,
            Some(_) => ProcessFate::Ended,
            None if is_gone(other.pid) => ProcessFate::Ended,
            None => ProcessFate::Hidden,
        }
    }
}

/// What may stand in a name of a host, of what stands there.
pub(crate) fn plain_host(name: &str) -> String {
    let plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    name.chars().filter(plain).take(HOST_BYTES_MAX).collect()
}

fn uuid(text: &str) -> [u8; 16] {
    uuid::Uuid::parse_str(text.trim()).map_or([0; 16], uuid::Uuid::into_bytes)
}

fn namespace() -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self/ns/pid").ok().map(|meta| meta.ino())
}

/// Field 22 of `/proc/PID/stat` (proc(5)). The name of the program, in parentheses before it, may hold anything.
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let behind = stat.iter().rposition(|&byte| byte == b')')?;
    let fields = std::str::from_utf8(&stat[behind + 1..]).ok()?;
    // The field behind the name is the third.
    fields.split_ascii_whitespace().nth(22 - 3)?.parse().ok()
}

/// Whether the kernel knows no process of this number; it says so also where `/proc` hides processes of others.
fn is_gone(pid: u32) -> bool {
    let Ok(pid) = libc::pid_t::try_from(pid) else { return true };
    // SAFETY: signal 0 is sent to no process; the call has no memory arguments.
    let rc = unsafe { libc::kill(pid, 0) };
    rc != 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that runs is known by number and start, and one that ended is known to have ended, also where its number is in use again.
    #[test]
    fn a_process_is_known_by_its_start() {
        let this = ProcessIdentity::this();
        assert!(this.started > 0 && this.namespace > 0 && this.boot != [0; 16], "{this:?}");
        assert_eq!(
            this.fate_of(&this),
            ProcessFate::Ended,
            "the one that asks does not stand in its own way"
        );
        let mut child = std::process::Command::new("sleep").arg("600").spawn().expect("a process");
        let other = ProcessIdentity {
            pid: child.id(),
            started: started(child.id()).expect("it runs"),
            ..this.clone()
        };
        assert_eq!(this.fate_of(&other), ProcessFate::Runs);
        assert_eq!(
            this.fate_of(&ProcessIdentity { started: other.started + 1, ..other.clone() }),
            ProcessFate::Ended
        );
        child.kill().and_then(|()| child.wait()).expect("ended");
        assert_eq!(this.fate_of(&other), ProcessFate::Ended);
    }

    /// Where it cannot be known, nothing is taken to have ended: another host, another container, a kernel that does not tell. A
    /// machine that was started again is known by its identity and name.
    #[test]
    fn what_cannot_be_known_is_not_taken_for_ended() {
        let this = ProcessIdentity { machine: [7; 16], ..ProcessIdentity::this() };
        let fate = |other: ProcessIdentity| this.fate_of(&other);
        assert_eq!(fate(ProcessIdentity::default()), ProcessFate::Unknown);
        assert_eq!(
            fate(ProcessIdentity { namespace: this.namespace + 1, pid: 1, ..this.clone() }),
            ProcessFate::Hidden
        );
        assert_eq!(fate(ProcessIdentity { started: 0, pid: 1, ..this.clone() }), ProcessFate::Hidden);
        let rebooted = ProcessIdentity { boot: [9; 16], ..this.clone() };
        assert_eq!(fate(rebooted.clone()), ProcessFate::Ended);
        assert_eq!(fate(ProcessIdentity { machine: [8; 16], ..rebooted.clone() }), ProcessFate::Unknown);
        assert_eq!(
            fate(ProcessIdentity { host: "another".into(), ..rebooted.clone() }),
            ProcessFate::Unknown
        );
        let nameless = ProcessIdentity { machine: [0; 16], ..this.clone() };
        assert_eq!(
            nameless.fate_of(&ProcessIdentity { boot: [9; 16], ..nameless.clone() }),
            ProcessFate::Unknown
        );
    }
}

#!/usr/bin/env bash
# Whether a FUSE mount knows RENAME_NOREPLACE cannot be tried on a name that is taken, and a mount without it may have no link(2) either.
#
# Guess before it was run: a mount that does not know the flag of renameat2(2) answers EINVAL whatever the names, so one trial with a name
# that is taken tells (EEXIST: it knows the flag, and nothing was changed by the trial). Where the flag is missing, link(2) works or
# answers EPERM, as link(2) says of file systems without hard links.
# Seen with Debian 12 on Linux 6: with the target taken, all of them answer EEXIST, because the kernel looks before it asks the file system. With
# the target free:
#   sshfs 3.7.3, bindfs 1.14.7, mergerfs 2.33.5   EINVAL; link(2) works
#   rclone mount 1.60.1 (--vfs-cache-mode writes)  EINVAL; link(2) answers EIO, as a broken disk would
#   gocryptfs 2.3                                  works
# So a program that tries the flag once, on a name that is taken, believes that it may rely on it; and one that falls back to
# link(2) where that is "not supported" takes rclone's answer for a failing disk.
#
# Needs root on Debian 12 with /dev/fuse. Uses no network but the package source: the "ssh" of sshfs is a local sftp-server.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
apt-get install -y -qq sshfs=3.7.3-1.2~deb12u1 openssh-sftp-server bindfs=1.14.7-1 mergerfs=2.33.5-1 gocryptfs=2.3-1+b4 \
    rclone=1.60.1+dfsg-2+b5 python3 > /dev/null
dir=$(mktemp -d)
trap 'mountpoint -q "$dir/mount" && fusermount3 -u "$dir/mount"; rm -rf "$dir"' EXIT
mkdir "$dir/mount"
cat > "$dir/try.py" <<'PY'
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
os.chdir(sys.argv[1])
for name in ("one", "two", "taken"):
    open(name, "w").close()
def noreplace(old, new):
    if libc.renameat2(-100, old.encode(), -100, new.encode(), 1) == 0:
        return "done"
    return errno.errorcode[ctypes.get_errno()]
def link(old, new):
    try:
        os.link(old, new)
        return "done"
    except OSError as e:
        return errno.errorcode[e.errno]
print(noreplace("one", "taken"), noreplace("one", "free"), link("two", "linked"))
PY
failed=0
# Arguments: what is mounted, the outcome of the rename to a taken name, to a free one, and of the link.
expect() {
    local found
    found=$(python3 "$dir/try.py" "$dir/mount")
    fusermount3 -u "$dir/mount"
    echo "$1: rename to a taken name, to a free one, link: $found"
    [ "$found" = "$2 $3 $4" ] || { echo "CHANGED: it was $2 $3 $4"; failed=1; }
    rm -rf "$dir/source"
    mkdir "$dir/source"
}
mkdir "$dir/source"
printf '#!/bin/sh\nexec /usr/lib/openssh/sftp-server\n' > "$dir/ssh"
chmod +x "$dir/ssh"
sshfs -o ssh_command="$dir/ssh" "nowhere:$dir/source" "$dir/mount"
expect sshfs EEXIST EINVAL done
bindfs "$dir/source" "$dir/mount"
expect bindfs EEXIST EINVAL done
mergerfs "$dir/source" "$dir/mount"
expect mergerfs EEXIST EINVAL done
gocryptfs -q -init -extpass "echo secret" "$dir/source"
gocryptfs -q -extpass "echo secret" "$dir/source" "$dir/mount"
expect gocryptfs EEXIST done done
rclone mount --config /dev/null --cache-dir "$dir/cache" --vfs-cache-mode writes "$dir/source" "$dir/mount" > /dev/null 2>&1 &
for _ in $(seq 100); do
    mountpoint -q "$dir/mount" && break
    sleep 0.1
done
expect rclone EEXIST EINVAL EIO
wait
[ "$failed" = 0 ] && echo "as before"
exit "$failed"

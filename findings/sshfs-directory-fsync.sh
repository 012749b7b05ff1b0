#!/usr/bin/env bash
# fsync of a directory on sshfs succeeds and reaches no server.
#
# Guess before it was run: the SFTP extension fsync@openssh.com takes any handle, so either sshfs sends one for the
# directory, or fsync(2) fails with EINVAL or ENOSYS as it may.
# Seen with sshfs 3.7.3-1.2~deb12u1 on libfuse 3.14.0-4 and OpenSSH 9.2p1 (Debian 12): fsync(2) on a directory returns 0. The server hears
# of the file's fsync, and of the link that gave the file its name, and of nothing behind that. A program that writes a file, syncs it,
# links it to its name and syncs the directory, as POSIX programs do, has told its user that the name is durable; on the server a
# power cut takes it away.
#
# Needs root on Debian 12 with /dev/fuse. Uses no network: the "ssh" of sshfs is a local sftp-server.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
apt-get install -y -qq sshfs=3.7.3-1.2~deb12u1 openssh-sftp-server >/dev/null
dir=$(mktemp -d)
trap 'mountpoint -q "$dir/mount" && umount "$dir/mount"; rm -rf "$dir"' EXIT
mkdir "$dir/mount" "$dir/served"
cat > "$dir/ssh" <<SSH
#!/bin/sh
exec /usr/lib/openssh/sftp-server -e -l DEBUG3 2>"$dir/log"
SSH
chmod +x "$dir/ssh"
sshfs -o ssh_command="$dir/ssh" "nowhere:$dir/served" "$dir/mount"
python3 - "$dir/mount" <<'PY'
import os, sys
os.chdir(sys.argv[1])
file = os.open("temporary", os.O_CREAT | os.O_WRONLY, 0o600)
os.write(file, b"data")
os.fsync(file)
os.link("temporary", "name")
here = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
os.fsync(here)
print("fsync of the directory: no error")
PY
umount "$dir/mount"
echo "what the server was asked that syncs or names:"
grep -oE "(fsync|hardlink)[^\"]*\"?[^\"]*" "$dir/log" | sed "s|$dir|DIR|g" | sort | uniq -c
syncs=$(grep -c "fsync" "$dir/log" || true)
last=$(grep -nE "fsync|hardlink" "$dir/log" | tail -1)
case $last in
    *hardlink*) echo "as before: nothing is synced behind the link ($syncs lines about fsync, all before it)" ;;
    *) echo "CHANGED: the server is asked to sync behind the link: $last"; exit 1 ;;
esac

# Another version of the program takes over under a pool and fio: by hand, as services, with the file replaced as a package does it, and the way
# back. The other one is built of the same source under another version: what the two write is the same.
#: init=systemd disk=3G other
set -eu
export PATH=/usr/sbin:/usr/bin
disk=/dev/disk/vm/disk
mkfs.ext4 -q $disk; mkdir -p /disk; mount $disk /disk
mkdir -p /disk/state /disk/cache /disk/store /var/lib/cistern /var/cache/cistern
mount --bind /disk/state /var/lib/cistern
mount --bind /disk/cache /var/cache/cistern
cp /job/*.service /etc/systemd/system/; systemctl daemon-reload
fail() { echo "FAILED: $*"; journalctl -q --no-pager -n 60; tail -n 20 /var/lib/cistern/attached/keeper.log 2> /dev/null; dmesg | tail -n 20; exit 1; }
trap 'fail "line $LINENO"' ERR
no_errors() { ! dmesg | grep -iE 'I/O error|buffer i/o|returned error' || fail "the kernel saw errors"; }
modprobe zfs; modprobe nbd

version=$(/job/cistern --version | cut -d' ' -f2)
other=$(/job/other --version | cut -d' ' -f2)
[ "$version" != "$other" ] || fail "both are $version"
install_program() { # as a package does: another file in its place
  cp "$1" /usr/bin/cistern.new; chmod 755 /usr/bin/cistern.new; mv /usr/bin/cistern.new /usr/bin/cistern
}
serves() { # VERSION
  cistern status | grep -q "version $1\$" || fail "after $how, served is $(cistern status | grep served)"
  [ "$(zpool list -H -o health tank)" = ONLINE ] || fail "after $how, the pool is $(zpool list -H -o health tank)"
}
keeper() { cut -d' ' -f1 /var/lib/cistern/attached/keeper.lock; }
keeper_is() { # FILE
  for i in $(seq 100); do cmp -s "/proc/$(keeper)/exe" "$1" && return; sleep 0.1; done
  fail "after $how, who keeps the device is $(readlink "/proc/$(keeper)/exe")"
}
timed() { how="$*"; local begin; begin=$(date +%s%N); "$@" > /dev/null; echo "$how: $((($(date +%s%N) - begin) / 1000000)) ms"; }
killed() { kill -9 "$(cistern status --json | grep -o '"pid": *[0-9]*' | head -1 | tr -dc 0-9)"; zpool sync tank; }

install_program /job/cistern
cistern up tank --on /disk/store/tank --size 1G -- --journal-size 256M
head -c 20M /dev/urandom > /tank/file; sha256sum /tank/file > /disk/sum
how=up; serves "$version"; keeper_is /job/cistern
fio --name=a --filename=/tank/fio --ioengine=psync --fsync=1 --rw=randwrite --bs=4k --size=64m --time_based --runtime=170 --numjobs=4 \
  --verify=crc32c --verify_fatal=1 --group_reporting --output-format=json > /tmp/fio.json &
load=$!

# By hand. Who keeps the device runs a file that is gone, and starts the daemon from the one in its place.
sleep 3; install_program /job/other; keeper_is /job/cistern
timed killed; serves "$other"; keeper_is /job/cistern
timed cistern up tank --restart; serves "$other"; keeper_is /job/other
sleep 3; install_program /job/cistern
timed cistern up tank --restart; serves "$version"; keeper_is /job/cistern

# As services.
systemctl enable -q cistern-pool@tank cistern-attached
timed systemctl start cistern-attached cistern-pool@tank; serves "$version"; keeper_is /usr/bin/cistern
sleep 3; install_program /job/other
timed systemctl restart cistern@tank; serves "$other"; keeper_is /job/cistern
timed systemctl restart cistern-attached; serves "$other"; keeper_is /job/other
sleep 3; install_program /job/cistern
timed killed; serves "$version"
sleep 3; install_program /job/other
timed systemctl restart cistern@tank cistern-attached; serves "$other"; keeper_is /job/other
sleep 3; install_program /job/cistern
timed cistern up tank --restart; serves "$version"
timed systemctl restart cistern-attached; keeper_is /job/cistern
kill -0 $load || fail "fio ended before the last change"

wait $load || fail "fio ends with $?"
rm /tank/fio
sha256sum -c --quiet /disk/sum
zpool scrub -w tank
zpool status -v tank > /tmp/status
grep -q 'No known data errors' /tmp/status || { cat /tmp/status; fail "the pool has errors"; }
awk '$1 == "cistern/tank" && $3 + $4 + $5 > 0 { exit 1 }' /tmp/status || { cat /tmp/status; fail "the pool counted errors"; }
no_errors
install_program /job/other
cistern down tank | grep -q "safe to disconnect"
no_errors

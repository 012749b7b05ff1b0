# A volume with a partition table, as a disk of a virtual machine has: the one partition with a filesystem comes up, and of several none is chosen.
#: disk=1G
. /job/lib.sh

modprobe zfs
up() { "$cistern" up "$@"; }
down() { "$cistern" down "$1" > /tmp/said; grep -q "safe to disconnect" /tmp/said || fail "down says: $(cat /tmp/said)"; }
table() { # LINES...: of sfdisk
  rm -rf /srv/tank "$STATE_DIRECTORY" "$CACHE_DIRECTORY"
  serve; "$cistern" attach tank
  device=$(readlink -f /dev/cistern/tank)
  printf '%s\n' "label: gpt" "$@" | sfdisk -q "$device"
  udevadm settle
}
away() { "$cistern" detach tank; stop; }

table size=16M,type=uefi ,
zpool create -o ashift=12 -o cachefile=none tank "${device}p2"
head -c 20M /dev/urandom > /tank/file; sha256sum /tank/file > /tmp/sum
zpool export tank
away
up tank --on /srv/tank -- --journal-size 256M
sha256sum -c --quiet /tmp/sum
[ "$(zpool list -vHP tank | awk 'NR == 2 { print $1 }')" = "$(readlink -f /dev/cistern/tank)p2" ] || fail "$(zpool list -vHP tank)"
sleep 1000 < /tank/file & holder=$!
refused 3 "process $holder (sleep) uses /tank/file" "$cistern" down tank
kill $holder; wait $holder || true
up tank --restart > /dev/null
head -c 5M /dev/urandom > /tank/more; sha256sum /tank/more >> /tmp/sum
down tank
( export STATE_DIRECTORY=/tmp/state-2 CACHE_DIRECTORY=/tmp/cache-2
  up tank --on /srv/tank -- --journal-size 256M > /dev/null
  sha256sum -c --quiet /tmp/sum
  down tank )

# One with sectors of 512 bytes is one that the kernel cannot read from a device with larger ones.
rm -rf /tmp/state-2; disk=$(readlink -f /dev/disk/vm/disk)
echo "label: gpt" | sfdisk -q "$disk"; echo , | sfdisk -q -a "$disk"
table ,
wipefs -qaf "$device"; dd if="$disk" of="$device" bs=1M count=4 conv=fsync status=none
away
refused 3 "a disk whose sectors do not have 4096 bytes" up tank --on /srv/tank
down tank

# Another filesystem, behind partitions that have none.
table size=16M,type=uefi size=64M size=300M
mkfs.ext4 -q "${device}p3"; mount "${device}p3" /mnt; cp /tmp/sum /mnt/file; umount /mnt
away
refused 2 "holds ext4" up tank --on /srv/tank
up tank --fs ext4 --mount /mnt/tank > /dev/null
cmp /tmp/sum /mnt/tank/file
mount | grep -q "^$(readlink -f /dev/cistern/tank)p3 on /mnt/tank "
( cd /mnt/tank; refused 3 "uses /mnt/tank" "$cistern" down tank )
down tank
! mountpoint -q /mnt/tank

# Several, and none.
up tank > /dev/null; device=$(readlink -f /dev/cistern/tank); mkfs.xfs -q -f "${device}p2" 2> /dev/null || mkfs.ext4 -q "${device}p2"
down tank
refused 3 "holds several filesystems: " up tank
down tank
table size=64M
away
refused 3 "a partition table (gpt) and no filesystem in a partition" up tank --on /srv/tank
down tank
no_errors

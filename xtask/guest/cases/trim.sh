# What is discarded costs seconds, whatever the size of the device: ZFS, xfs, btrfs, ext4 and blkdiscard. Prints what it measures.
. /job/lib.sh

modprobe zfs; modprobe xfs; modprobe btrfs
ms() { echo $((($(date +%s%N) - $1) / 1000000)); }
timed() { # WHAT COMMAND...
  local what=$1 begin; shift
  begin=$(date +%s%N)
  "$@" > /tmp/out 2>&1 || fail "$*: $(cat /tmp/out)"
  echo "$what: $(ms "$begin") ms"
}
stored() { du -sk /srv | cut -f1; }
device=/dev/cistern/big

"$cistern" create /srv/big --size 16T
serve /srv/big --journal-size 256M
"$cistern" attach big
echo "a request discards up to $(cat /sys/block/nbd0/queue/discard_max_bytes) bytes"

timed "blkdiscard of 16 TiB" blkdiscard -f $device
timed "zpool create" zpool create -f -o ashift=12 -o cachefile=none -O atime=off pool $device
# ZFS sends pieces of 128 MiB unless told otherwise, and syncs after each of a thousand metaslabs (docs/zfs.md).
echo 2147483648 > /sys/module/zfs/parameters/zfs_trim_extent_bytes_max
timed "zpool trim of an empty pool of 16 TiB" zpool trim -w pool
zpool set autotrim=on pool
head -c 200M /dev/urandom > /pool/file; zpool sync pool
timed "rm and zpool sync with autotrim" sh -c 'rm /pool/file; zpool sync pool'
zpool export pool

timed "mkfs.xfs" mkfs.xfs -q -f $device
mount $device /mnt
timed "fstrim of an empty xfs of 16 TiB" fstrim /mnt
head -c 100M /dev/urandom > /mnt/file; sync; rm /mnt/file; sync
timed "fstrim again" fstrim /mnt
umount /mnt

timed "mkfs.btrfs" mkfs.btrfs -q -f $device
mount $device /mnt
timed "fstrim of an empty btrfs of 16 TiB" fstrim /mnt
umount /mnt

# ext4 asks for one group of 128 MiB after another and waits for each.
timed "mkfs.ext4 of 1 TiB" mkfs.ext4 -q -F $device 1T
mount $device /mnt
timed "fstrim of an empty ext4 of 1 TiB" fstrim /mnt
umount /mnt

timed "blkdiscard at the end" blkdiscard -f $device
"$cistern" status --wait-clean > /dev/null
echo "in the store: $(stored) KiB"
no_errors
"$cistern" detach big
stop

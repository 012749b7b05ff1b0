# What is discarded costs seconds and takes no room, whatever the size of the device: ZFS, xfs, btrfs, ext4 and blkdiscard.
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
mkfifo /tmp/ready
"$cistern" serve /srv/big --journal-size 256M > /tmp/ready 2>> /tmp/serve.log &
daemon=$!
read -r line < /tmp/ready; case $line in serving*) ;; *) fail "the daemon says: $line" ;; esac
"$cistern" attach big
echo "a request discards up to $(cat /sys/block/nbd0/queue/discard_max_bytes) bytes"

timed "blkdiscard of 16 TiB" blkdiscard -f $device
timed "zpool create" zpool create -f -o ashift=12 -o cachefile=none -O atime=off pool $device
timed "zpool trim of an empty pool of 16 TiB" zpool trim -w pool
zpool set autotrim=on pool
head -c 200M /dev/urandom > /pool/file; zpool sync pool
timed "rm and zpool sync with autotrim" sh -c 'rm /pool/file; zpool sync pool'
timed "zpool trim" zpool trim -w pool
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

timed "mkfs.ext4" mkfs.ext4 -q -F -E lazy_itable_init=1 $device
mount $device /mnt
timed "fstrim of an empty ext4 of 16 TiB" fstrim /mnt
umount /mnt
timed "blkdiscard at the end" blkdiscard -f $device
"$cistern" status --wait-clean > /dev/null
echo "in the store: $(stored) KiB"
no_errors
"$cistern" detach big
stop

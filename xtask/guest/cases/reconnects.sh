# A disk through QEMU's own client of NBD, whose daemon is killed every few seconds: on ext4 and on ZFS nothing is missing that was fsynced, and
# everything that is read is what was written. Nothing is asked of the daemon before a kill.
#: killed=1G
. /job/lib.sh

disk=/dev/disk/vm/tank
written=0

# Writes for a hundred seconds, some twenty kills: numbers that are fsynced one by one, files whose sums are noted, and blocks that fio compares.
written_over_kills() { # DIRECTORY
  local end=$((SECONDS + 100)) load
  written=0; : > /tmp/sums
  fio --name=a --filename="$1/file" --direct=1 --ioengine=libaio --rw=randrw --bs=4k --iodepth=32 --size=128m --time_based --runtime=100 \
    --verify=crc32c --verify_fatal=1 --verify_backlog=1024 --output=/tmp/fio.txt &
  load=$!
  while [ $SECONDS -lt $end ]; do
    written=$((written + 1))
    printf '%015d\n' $written | dd of="$1/log" oflag=append conv=notrunc,fsync status=none
    [ $((written % 8)) != 0 ] || { head -c 256K /dev/urandom > "$1/f$written"; (cd "$1"; sha256sum f$written) >> /tmp/sums; }
  done
  wait "$load" || { cat /tmp/fio.txt; fail "fio ends with $?"; }
}

# All of it, read from the disk.
found() { # DIRECTORY
  echo "$written numbers, $(wc -l < /tmp/sums) files"
  [ $written -gt 100 ] || fail "that is too little to tell anything"
  seq -f %015.0f $written | cmp - "$1/log"
  (cd "$1"; sha256sum -c --quiet /tmp/sums)
}

mkfs.ext4 -q $disk
mount $disk /mnt
written_over_kills /mnt
echo 3 > /proc/sys/vm/drop_caches
found /mnt
umount /mnt
e2fsck -fn $disk > /dev/null
mount $disk /mnt
found /mnt
umount /mnt
wipefs -qa $disk

modprobe zfs
zpool create -f -o ashift=12 -o cachefile=none -O atime=off pool "$(readlink -f $disk)"
written_over_kills /pool
zpool export pool
zpool import -d /dev pool
found /pool
scrubbed pool
zpool status -x | grep -q 'all pools are healthy' || { zpool status; fail "the pool counted errors"; }
zpool export pool
no_errors

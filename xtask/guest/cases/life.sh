# The life of a pool takes no longer than on a device in memory: nbdkit's, attached by nbd-client, in the same guest. Three turns of each,
# and the writer that syncs every block, against a file that nbdkit serves.
. /job/lib.sh

modprobe zfs; modprobe nbd
umount /srv; mount -t tmpfs -o size=2500M none /srv
now() { date +%s%N; }
life() { # WHAT DEVICE
  local begin step
  begin=$(now)
  zpool create -f -o ashift=12 -o cachefile=none -O compression=lz4 -O atime=off pool "$2"
  head -c 300M /tmp/content > /pool/file; zpool sync pool
  zpool scrub -w pool
  zfs snapshot pool@a
  zfs send pool@a | zfs receive pool/copy
  cmp /pool/file /pool/copy/file
  zpool export pool
  step=$(now)
  echo "life $1: $(((step - begin) / 1000000)) ms"
}
writer() { # WHAT DEVICE
  fio --name=a --filename="$2" --ioengine=psync --direct=1 --fsync=1 --rw=randwrite --bs=4k --size=256m --time_based --runtime=15 \
    --output-format=json > /tmp/fio.json
  echo "writer $1: $(awk '/"write" :/ { w = 1 } w && /"iops" :/ { print int($3); exit }' /tmp/fio.json) syncs/s"
}
head -c 300M /dev/urandom > /tmp/content
nbdkit_device() { # PLUGIN ARGS...
  rm -f /tmp/nbdkit.pid /tmp/nbdkit.sock
  nbdkit -P /tmp/nbdkit.pid -U /tmp/nbdkit.sock "$@"
  nbd-client -b 4096 -unix /tmp/nbdkit.sock /dev/nbd9 > /dev/null
}
nbdkit_away() { nbd-client -d /dev/nbd9 > /dev/null; kill "$(cat /tmp/nbdkit.pid)"; while [ -e "/proc/$(cat /tmp/nbdkit.pid 2>/dev/null)" ]; do sleep 0.1; done; }
our_device() {
  rm -rf /srv/tank /tmp/state /tmp/cache
  serve
  "$cistern" attach tank
}
our_away() { "$cistern" detach tank; stop; }

for turn in 1 2 3; do
  our_device
  life cistern /dev/cistern/tank
  our_away
  nbdkit_device memory 1G
  life nbdkit-memory /dev/nbd9
  nbdkit_away
done
rm /tmp/content
for turn in 1 2 3; do
  our_device
  writer cistern /dev/cistern/tank
  our_away
  rm -f /tmp/disk; truncate -s 1G /tmp/disk
  nbdkit_device file /tmp/disk
  writer nbd-client+nbdkit-file /dev/nbd9
  nbdkit_away
done
no_errors

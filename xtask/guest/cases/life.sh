# The life of a pool takes no longer than on a device in memory: nbdkit's, attached by nbd-client, in the same guest. Three turns of each,
# and the writer that syncs every block, against a file that nbdkit serves, journal and file on the guest's disk. Prints what it measures.
#: disk=4G
. /job/lib.sh

modprobe zfs; modprobe nbd
umount /srv; mount -t tmpfs -o size=2200M none /srv
now() { date +%s%N; }
life() { # WHAT DEVICE
  local begin last said=
  lap() { local at; at=$(now); said="$said $1 $(((at - last) / 1000000))"; last=$at; }
  begin=$(now); last=$begin
  zpool create -f -o ashift=12 -o cachefile=none -O compression=lz4 -O atime=off pool "$2"; lap create
  head -c 300M /tmp/content > /pool/file; zpool sync pool; lap write
  zpool scrub -w pool; lap scrub
  zfs snapshot pool@a
  zfs send pool@a | zfs receive pool/copy; lap send
  cmp /pool/file /pool/copy/file; lap compare
  zpool export pool; lap export
  echo "life $1: $(((last - begin) / 1000000)) ms:$said"
  [ -z "$daemon" ] || for task in /proc/"$daemon"/task/*; do # in hundredths of a second
    echo "$(cat "$task/comm") $(sed 's/.*) //' "$task/stat" | cut -d' ' -f12,13)"
  done 2> /dev/null | awk '{ n = NF; cpu[$1] += $(n - 1) + $n } END { for (name in cpu) printf "  %s %d", name, cpu[name]; print "" }'
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
  rm -rf /srv/tank "$STATE_DIRECTORY" /tmp/cache
  serve
  "$cistern" attach tank
}
our_away() { "$cistern" detach tank; stop; daemon=; }

for turn in 1 2 3; do
  our_device
  life cistern /dev/cistern/tank
  our_away
  nbdkit_device memory 1G
  life nbdkit-memory /dev/nbd9
  nbdkit_away
done
rm /tmp/content
mkfs.ext4 -q /dev/disk/vm/disk; mkdir /disk; mount /dev/disk/vm/disk /disk
export STATE_DIRECTORY=/disk/state
for turn in 1 2 3; do
  our_device
  writer cistern /dev/cistern/tank
  our_away
  rm -f /disk/file; truncate -s 1G /disk/file
  nbdkit_device file /disk/file
  writer nbd-client+nbdkit-file /dev/nbd9
  nbdkit_away
done
no_errors

# A walk, a sleep and an end, beside what people put together by hand: bcache on the kernel's NBD client, nbdkit and s3backer. Both keep a filesystem
# in an S3 server behind one link. The peer's server runs on the host itself, so that nothing of it is emulated; cistern's runs in the guest. As
# much local disk for either: 512 MiB. Prints what it measures, and fails where cistern does not do what it says.
#: init=systemd disk=6G host
. /job/lib.sh
. /job/host
unset STATE_DIRECTORY CACHE_DIRECTORY RUNTIME_DIRECTORY
export SSL_CERT_FILE=/job/certificates STATE_DIRECTORY=/disk/state CACHE_DIRECTORY=/disk/cache RUNTIME_DIRECTORY=/run/cistern
mkdir -p /run/cistern /disk /tree
modprobe nbd; modprobe bcache
disk=$(readlink -f /dev/disk/vm/disk)
printf ',512M\n,+\n' | sfdisk -q "$disk"; udevadm settle
mkfs.ext4 -q "${disk}2"; mount "${disk}2" /disk

ms() { echo $((($(date +%s%N) - $1) / 1000000)); }
quiet() { udevadm settle; sync; echo 3 > /proc/sys/vm/drop_caches; }

cistern_up() {
  serve s3://tank/vol --create 1G --journal-size 256M --cache-size 256M
  "$cistern" attach vol
  device=/dev/cistern/vol
}
cistern_clean() { "$cistern" drain s3://tank/vol; }
cistern_down() { "$cistern" detach vol; "$cistern" drain s3://tank/vol > /dev/null; stop; }
cistern_forget() { rm -rf /disk/state /disk/cache; }
cistern_sleep() { "$cistern" freeze > /tmp/said 2>&1 || return 1; sleep_now; "$cistern" thaw; }

bcache_up() {
  ask peer start
  nbd-client -b 4096 10.0.2.2 "$peer_port" /dev/nbd9 > /dev/null
  [ -e /tmp/backing ] || make-bcache -B /dev/nbd9 > /dev/null
  touch /tmp/backing
  udevadm settle
  [ -e /sys/block/bcache0 ] || echo /dev/nbd9 > /sys/fs/bcache/register
  if [ ! -e /tmp/caching ]; then wipefs -qa "${disk}1"; make-bcache -C "${disk}1" > /dev/null; touch /tmp/caching; fi
  udevadm settle
  local set; set=$(bcache-super-show "${disk}1" | awk '/cset.uuid/ { print $2 }')
  [ -e "/sys/fs/bcache/$set" ] || echo "${disk}1" > /sys/fs/bcache/register
  until [ -e "/sys/fs/bcache/$set" ]; do sleep 0.1; done
  echo "$set" > /sys/block/bcache0/bcache/attach
  echo writeback > /sys/block/bcache0/bcache/cache_mode
  # What guides to slow stores say: everything through the cache, however slow the rest is.
  echo 0 > /sys/block/bcache0/bcache/sequential_cutoff
  echo 0 > "/sys/fs/bcache/$set/congested_read_threshold_us"; echo 0 > "/sys/fs/bcache/$set/congested_write_threshold_us"
  device=/dev/bcache0
}
bcache_clean() {
  local was; was=$(cat /sys/block/bcache0/bcache/writeback_percent)
  echo 0 > /sys/block/bcache0/bcache/writeback_percent
  until [ "$(cat /sys/block/bcache0/bcache/state)" = clean ]; do sleep 0.1; done
  echo "$was" > /sys/block/bcache0/bcache/writeback_percent
}
bcache_down() {
  local set; set=$(bcache-super-show "${disk}1" | awk '/cset.uuid/ { print $2 }')
  echo 1 > /sys/block/bcache0/bcache/detach
  until [ "$(cat /sys/block/bcache0/bcache/state)" = "no cache" ]; do sleep 0.1; done
  echo 1 > /sys/block/bcache0/bcache/stop
  while [ -e /sys/block/bcache0 ]; do sleep 0.1; done
  echo 1 > "/sys/fs/bcache/$set/stop"
  while [ -e "/sys/fs/bcache/$set" ]; do sleep 0.1; done
  nbd-client -d /dev/nbd9 > /dev/null
  while [ -e /sys/block/nbd9/pid ]; do sleep 0.1; done
  ask peer stop
}
bcache_forget() { rm /tmp/caching; }
bcache_sleep() { sleep_now; }

slept() { dmesg | grep -c "Image created" || true; }
# All processes are stopped, memory is copied, all devices are stopped and started; there is nowhere to write the image to.
sleep_now() { local was; was=$(slept); echo disk > /sys/power/state 2> /dev/null || true; [ "$(slept)" -gt "$was" ]; }
hibernate() { # WHAT HOW
  local begin; begin=$(date +%s%N)
  if "$1_sleep"; then echo "$1: $2: slept, after $(ms "$begin") ms"; else echo "$1: $2: did not sleep, told after $(ms "$begin") ms: $(cat /tmp/said 2> /dev/null || dmesg | grep -i "freezing .* failed" | tail -1)"; return 1; fi
}

life() { # WHAT
  local begin a b
  rm -f /tmp/said
  ask link wide
  "$1_up"
  mkfs.ext4 -q -i 8192 "$device"; mount "$device" /tree
  for a in 0 1 2 3 4 5 6 7 8 9; do for b in 0 1 2 3 4 5 6 7 8 9; do
    mkdir -p "/tree/part-$a/group-$b"; (cd "/tree/part-$a/group-$b"; touch item-{000..099})
  done; done
  sync; "$1_clean"
  begin=$(date +%s%N)
  dd if=/dev/urandom of=/tree/bulk bs=1M count=320 conv=fsync status=none
  echo "$1: 320 MiB written in order, synced: $(ms "$begin") ms"
  "$1_clean"
  umount /tree

  ask link 20 1
  quiet; begin=$(date +%s%N)
  mount -o ro "$device" /tree; [ "$(find /tree -ls | wc -l)" = 10113 ] || fail "find sees $(find /tree | wc -l)"
  echo "$1: walk of 10,000 files after it, 20 ms and 1 MB/s: $(ms "$begin") ms"
  begin=$(date +%s%N); find /tree -ls > /dev/null
  echo "$1: the same once more, from the kernel's memory: $(ms "$begin") ms"
  umount /tree
  ask link wide; "$1_down"; "$1_forget"
  ask link 20 1
  begin=$(date +%s%N)
  "$1_up"; echo "$1: up again, its cache empty: $(ms "$begin") ms"
  quiet; begin=$(date +%s%N)
  mount -o ro "$device" /tree; find /tree -ls > /dev/null
  echo "$1: walk with an empty cache: $(ms "$begin") ms"
  umount /tree

  ask link wide; quiet
  mount "$device" /tree
  printf 'cd /tree; n=0; while :; do n=$((n+1)); echo $n > n.new; sync n.new; mv n.new n; sleep 0.02; done' > /tmp/writer
  systemd-run -q --unit="writer-$1" /bin/bash /tmp/writer
  until [ -e /tree/n ]; do sleep 0.1; done
  ask link away
  fio --name=a --filename=/tree/a --rw=randwrite --bs=4k --size=8m --fsync=64 --ioengine=psync > /dev/null
  hibernate "$1" "the store away, 8 MiB just written and synced" || [ "$1" != cistern ] || fail "it does not sleep"
  systemd-run -q --unit="reader-$1" dd if=/tree/bulk of=/dev/null bs=4k skip=60000 iflag=direct
  until grep -q "^State:.D" "/proc/$(systemctl show --value --property MainPID "reader-$1")/status"; do sleep 0.1; done
  a=$(cat /tree/n); sleep 2
  echo "$1: the writer beside somebody who waits for the store: $((($(cat /tree/n) - a) / 2)) rounds a second"
  hibernate "$1" "somebody waits for the store" && [ "$1" = cistern ] && fail "it sleeps"
  [ "$1" != cistern ] || grep -q "^error: not now" /tmp/said || fail "$(cat /tmp/said)"
  ask link wide
  systemctl stop "reader-$1" "writer-$1"

  "$1_clean"
  ask link 20 30
  fio --name=a --filename=/tree/bulk --rw=randwrite --bs=4k --size=320m --io_size=8m --fsync=64 --ioengine=psync > /dev/null
  begin=$(date +%s%N)
  umount /tree; "$1_down"
  echo "$1: 8 MiB written at random over 320, until it is unmounted, detached and all of it in the bucket, 20 ms and 30 MB/s: $(ms "$begin") ms"
}
life cistern
life bcache

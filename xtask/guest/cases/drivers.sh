# The two drivers of the kernel side by side: the same volume as a device of the NBD client and of ublk, in turns; and how long a request takes
# over restarts and kills. Prints what it measures.
#: disk=8G
. /job/lib.sh
modprobe ublk_drv

# What is overwritten stays in the store: no daemon lives for as long as it is kept. So memory does not hold it.
mkfs.ext4 -q /dev/disk/vm/disk; mkdir /disk; mount /dev/disk/vm/disk /disk; mkdir /disk/store
tank="/disk/store/tank --create 1G --journal-size 256M"

figure() { # NAME KEY ARGS...
  local name=$1 key=$2; shift 2
  fio --name=a --filename=/dev/cistern/tank --direct=1 --size=512m --time_based --runtime=8 --output-format=json "$@" > /tmp/fio.json
  awk -v key="$key" -v name="$name" '$1 == "\"read\"" || $1 == "\"write\"" { part = $1 } $1 == "\"" key "\"" { gsub(/[^0-9.]/, "", $3); if ($3 >= 1) printf " %s %d", name, $3 }' /tmp/fio.json
}
serve
for turn in 1 2 3; do
  for driver in nbd ublk; do
    case $driver in nbd) "$cistern" attach tank > /tmp/attach.log;; *) "$cistern" attach tank --ublk > /tmp/attach.log;; esac
    [ "$turn$driver" != 1nbd ] || fio --name=fill --filename=/dev/cistern/tank --direct=1 --rw=write --bs=1m --size=512m > /dev/null
    before=$(cut -d' ' -f14,15 "/proc/$daemon/stat")
    said=$(figure "4k-write-qd32" iops --ioengine=libaio --rw=randwrite --bs=4k --iodepth=32
      figure "4k-read-qd32" iops --ioengine=libaio --rw=randread --bs=4k --iodepth=32
      figure "4k-read-qd1" iops --ioengine=psync --rw=randread --bs=4k
      figure "4k-write-fsync" iops --ioengine=psync --fsync=1 --rw=randwrite --bs=4k
      figure "1m-read-KiB/s" bw --ioengine=libaio --rw=read --bs=1m --iodepth=8
      figure "1m-write-KiB/s" bw --ioengine=libaio --rw=write --bs=1m --iodepth=8)
    after=$(cut -d' ' -f14,15 "/proc/$daemon/stat")
    echo "$driver:$said cpu $before -> $after"
    "$cistern" detach tank
    "$cistern" drain ${tank%% *} > /dev/null
  done
done
longest() { # DRIVER HOW
  local load
  fio --name=a --filename=/dev/cistern/tank --direct=1 --ioengine=libaio --rw=randrw --bs=4k --iodepth=64 --size=256m --time_based \
    --runtime=$((ROUNDS * 6)) --output-format=json > /tmp/fio.json &
  load=$!
  for turn in $(seq "$ROUNDS"); do sleep 2; "$2"; serve; done
  wait "$load" || fail "fio ends with $?"
  echo "$1: the longest of 64 requests at a time over $ROUNDS times $2: $(longest_request)"
}
ROUNDS=10
for driver in nbd ublk; do
  case $driver in nbd) "$cistern" attach tank > /tmp/attach.log;; *) "$cistern" attach tank --ublk > /tmp/attach.log;; esac
  longest "$driver" stop
  longest "$driver" crash
  "$cistern" detach tank
done
no_errors

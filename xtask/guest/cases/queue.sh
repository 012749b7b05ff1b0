# What the settings of the kernel's queue do to a device behind a link: reads in order that come from the store, reads and writes at random, and
# large ones. Each setting in turns with the kernel's own. Prints what it measures.
#: disk=6G host
. /job/lib.sh
. /job/host
export SSL_CERT_FILE=/job/certificates STATE_DIRECTORY=/disk/state CACHE_DIRECTORY=/disk/cache
mkfs.ext4 -q /dev/disk/vm/disk; mkdir /disk; mount /dev/disk/vm/disk /disk
modprobe nbd
up() {
  serve s3://tank/vol --create 2G --journal-size 256M --cache-size 256M
  "$cistern" attach vol > /dev/null
  queue=/sys/block/$(basename "$(readlink -f /dev/cistern/vol)")/queue
}
away() { "$cistern" detach vol > /dev/null; stop; daemon=; }

up
for name in scheduler read_ahead_kb max_sectors_kb max_hw_sectors_kb nr_requests optimal_io_size rotational; do echo "the kernel's: $name $(cat "$queue/$name")"; done
dd if=/dev/urandom of=/dev/cistern/vol bs=1M count=512 oflag=direct status=none
"$cistern" drain s3://tank/vol > /dev/null
away

set_all() { echo "$1" > "$queue/read_ahead_kb"; echo "$2" > "$queue/max_sectors_kb"; }
fio_rate() { # ARGS...: requests a second
  fio --name=a --filename=/dev/cistern/vol --direct=1 --ioengine=libaio --time_based --runtime=5 --output-format=json "$@" > /tmp/fio.json
  awk '/"iops" :/ { gsub(/[^0-9.]/, ""); if ($0 + 0 > most) most = $0 + 0 } END { printf "%d", most }' /tmp/fio.json
}
for turn in 1 2; do
  for setting in "256 1280" "1024 1280" "4096 1280" "4096 4096"; do # read_ahead_kb max_sectors_kb
    rm -rf /disk/cache; up
    set_all $setting || fail "$setting cannot be set"
    ask link 20 30
    echo 3 > /proc/sys/vm/drop_caches
    begin=$(date +%s%N)
    dd if=/dev/cistern/vol of=/dev/null bs=1M count=96 status=none
    cold=$((96000000000 * 1048576 / 1000000 / ($(date +%s%N) - begin)))
    ask link wide
    echo 3 > /proc/sys/vm/drop_caches
    begin=$(date +%s%N)
    dd if=/dev/cistern/vol of=/dev/null bs=1M count=96 status=none
    warm=$((96000000000 * 1048576 / 1000000 / ($(date +%s%N) - begin)))
    read4k=$(fio_rate --rw=randread --bs=4k --iodepth=32 --size=96m)
    large=$(fio_rate --rw=read --bs=4m --iodepth=4 --size=96m)
    write4k=$(fio_rate --rw=randwrite --bs=4k --iodepth=32 --offset=1g --size=96m)
    echo "$setting: in order through the page cache, cold $cold MB/s, cached $warm MB/s; 4 KiB at random, reads $read4k/s, writes $write4k/s; 4 MiB in order $large/s"
    away
  done
done
no_errors

# A device of the kernel's userspace block driver is kept as one of its NBD client is: stops and kills under fio verify, ZFS above it, another
# host in between, detaching when nobody answers.
. /job/lib.sh
modprobe zfs

serve
"$cistern" attach tank --ublk
dev=$(readlink /dev/cistern/tank)
[ "$dev" = /dev/ublkb0 ]
[ "$(cat /sys/block/ublkb0/queue/logical_block_size)" = 4096 ]
[ "$(cat /sys/block/ublkb0/queue/write_cache)" = "write back" ]
refused 11 "attached already" "$cistern" attach tank --ublk
refused 11 "attached already" "$cistern" attach tank
refused 2 "cannot be used with '--ublk'" "$cistern" attach tank /dev/nbd0 --ublk
grep -q '"devices": *\[ *0 *\]' <("$cistern" status --json | tr -d '\n') || fail "status does not say which device it serves"

no_own_pages

verified_over $dev stop crash stop crash stop crash

# Large requests, and scattered ones that come back as many pieces.
fio --name=b --filename=$dev --direct=1 --ioengine=libaio --rw=randwrite --bsrange=4k-1m --iodepth=16 --size=512m --io_size=300m \
  --verify=crc32c --verify_fatal=1 --do_verify=1 > /dev/null
dd if=/dev/zero of=$dev bs=1M count=1 seek=1000 oflag=direct conv=notrunc 2> /dev/null
blkdiscard -o 4096 -l 1048576 $dev; blkdiscard -z -o 8M -l 4M $dev
cmp -n 1048576 -i 4096:0 $dev /dev/zero; cmp -n 4194304 -i 8388608:0 $dev /dev/zero

zpool create -o ashift=12 -o cachefile=none tank $dev
refused 3 "somebody has it for himself alone" "$cistern" detach tank
( for i in $(seq 20); do head -c 1M /dev/urandom > /tank/f$i; zpool sync tank; done ) &
load=$!
for turn in 1 2 3; do sleep 1; crash; serve; done
wait "$load"
(cd /tank && sha256sum f*) > /tmp/sums
zpool export tank
zpool import -d /dev/cistern -o cachefile=none tank
(cd /tank && sha256sum -c --quiet /tmp/sums)
zpool scrub -w tank
[ "$(zpool list -Ho health tank)" = ONLINE ]
zpool status tank | grep -q "errors: No known data errors"
zpool export tank
no_errors
"$cistern" detach tank
[ ! -e /dev/cistern/tank ] && [ ! -e $dev ] && [ ! -e /dev/ublkc0 ]

# Nobody answers, and nobody will.
"$cistern" attach tank --ublk
crash
( dd if=/dev/zero of=$dev bs=4k count=1 oflag=direct 2> /dev/null && echo "a write succeeded that nobody can have" ) &
stuck=$!
sleep 1
"$cistern" detach tank --force
wait "$stuck" || true
[ ! -e $dev ]

# Another host has the volume in between: what is cached of the device is not what is there, so nobody serves it.
serve
"$cistern" attach tank --ublk
"$cistern" snapshot /srv/tank@before
refused 3 "clients are connected" "$cistern" rollback /srv/tank@before
stop
( export STATE_DIRECTORY=/tmp/state-2 CACHE_DIRECTORY=/tmp/cache-2; serve; stop )
serve
until grep -q "not what it was" "$STATE_DIRECTORY/attached/keeper.log"; do sleep 0.1; done
[ -e $dev ]
"$cistern" detach tank --force

# It makes way for the other driver.
"$cistern" attach tank
dd if=/dev/cistern/tank of=/dev/null bs=4k count=1 iflag=direct 2> /dev/null
"$cistern" detach tank
stop

dmesg -C # what was taken away by force failed, as it should

# `up` makes such a device when it is told to, and remembers it.
"$cistern" up pool --on /srv/pool --size 1G --driver ublk -- --journal-size 128M
[ "$(readlink /dev/cistern/pool)" = /dev/ublkb0 ]
head -c 8M /dev/urandom > /pool/a; sum=$(sha256sum < /pool/a)
"$cistern" up pool --restart
kill -KILL "$("$cistern" status --json | grep -o '"pid": *[0-9]*' | grep -o '[0-9]*')"
zpool sync pool
[ "$(sha256sum < /pool/a)" = "$sum" ]
"$cistern" down pool | grep -q "safe to disconnect"
[ ! -e /dev/ublkc0 ]
"$cistern" up pool
[ "$(readlink /dev/cistern/pool)" = /dev/ublkb0 ] && [ "$(sha256sum < /pool/a)" = "$sum" ]
"$cistern" down pool | grep -q "safe to disconnect"
no_errors

# A ZFS pool on a volume: stops and kills under load, scrub, export, and import from the store alone by another host.
. /job/lib.sh

modprobe zfs
serve
"$cistern" attach tank
"$cistern" status | grep -q "device  *$(readlink -f /dev/cistern/tank)$" || fail "status names no device: $("$cistern" status)"
zpool create -f -o ashift=12 -o cachefile=none -O compression=lz4 -O atime=off pool /dev/cistern/tank
refused 3 "ZFS pool" "$cistern" detach tank
( for i in $(seq 60); do head -c 2M /dev/urandom > /pool/f$i; sync /pool/f$i; done ) &
load=$!
for turn in 1 2 3 4; do
  sleep 2
  [ $((turn % 2)) = 0 ] && crash || stop
  serve
done
wait "$load" || fail "a write failed"
(cd /pool && sha256sum f*) > /tmp/sums
zfs snapshot pool@a
zfs send pool@a | zfs receive pool/copy
scrubbed pool
zpool export pool
no_errors
"$cistern" detach tank
stop

export STATE_DIRECTORY=/tmp/state-2 CACHE_DIRECTORY=/tmp/cache-2
serve
"$cistern" attach tank
dmesg --clear
zpool import -d /dev/cistern -o cachefile=none pool
(cd /pool && sha256sum -c --quiet /tmp/sums)
(cd /pool/copy && sha256sum -c --quiet /tmp/sums)
zpool export pool
no_errors # udev reads what is being detached, and is told that it is not there
"$cistern" detach tank
stop

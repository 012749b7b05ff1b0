# A device outlives its daemon: stops and kills in turns under fio verify, ext4 above it, and detaching when nobody answers.
. /job/lib.sh

serve
refused 2 "not a block device" "$cistern" attach tank /etc/passwd
"$cistern" attach tank
[ "$(cat /sys/block/nbd0/queue/logical_block_size)" = 4096 ]
refused 11 "attached already" "$cistern" attach tank
refused 4 "no daemon of this host serves" "$cistern" attach other

# It is not the first to go when memory runs out.
[ "$(cat /proc/$daemon/oom_score_adj)" = -900 ] || fail "oom_score_adj is $(cat /proc/$daemon/oom_score_adj)"
no_own_pages

verified_over /dev/cistern/tank stop crash stop crash stop crash
# A stop leaves the connection to the next daemon; only behind a kill there is a new one.
[ "$(new_connections)" = 4 ] || fail "$(new_connections) new connections, where one was looked at and three died"

mkfs.ext4 -q /dev/cistern/tank
mount /dev/cistern/tank /mnt
refused 3 "mounted on /mnt" "$cistern" detach tank
( for i in $(seq 40); do head -c 1M /dev/urandom > /mnt/f$i; sync /mnt/f$i; done ) &
load=$!
for turn in 1 2 3; do sleep 1; crash; serve; done
wait "$load"
(cd /mnt && sha256sum f*) > /tmp/sums
umount /mnt
e2fsck -fn /dev/cistern/tank > /dev/null
mount /dev/cistern/tank /mnt
(cd /mnt && sha256sum -c --quiet /tmp/sums)
umount /mnt
no_errors
"$cistern" detach tank
[ ! -e /dev/cistern/tank ]
refused 4 "nothing of that name is attached" "$cistern" detach tank
refused 4 "not attached to anything" "$cistern" detach /dev/nbd0

# A device is free as well where its daemon never comes back: behind a kill, and behind a stop, when its connection waits for the next one
# and is full.
for ending in crash stop; do
  "$cistern" attach tank
  "$ending"
  ( dd if=/dev/zero of=/dev/nbd0 bs=4M count=1 oflag=direct 2> /dev/null && echo "a write succeeded that nobody can have" ) &
  stuck=$!
  sleep 1
  "$cistern" detach tank --force
  wait "$stuck" || true
  [ ! -e /sys/block/nbd0/pid ]
  serve
done

"$cistern" attach tank
"$cistern" resize /srv/tank 2G
[ "$(blockdev --getsize64 /dev/cistern/tank)" = $((2 << 30)) ]
dd if=/dev/urandom of=/dev/cistern/tank bs=1M seek=2047 count=1 oflag=direct 2> /dev/null
"$cistern" snapshot /srv/tank@before
refused 3 "clients are connected" "$cistern" rollback /srv/tank@before
stop

# Another host has the volume in between: what is cached of the device is not what is there, so it gets no connection.
( export STATE_DIRECTORY=/tmp/state-2 CACHE_DIRECTORY=/tmp/cache-2; serve; stop )
serve
until grep -q "not what it was" "$STATE_DIRECTORY/attached/keeper.log"; do sleep 0.1; done
[ -e /sys/block/nbd0/pid ]
"$cistern" detach tank --force
"$cistern" attach tank
dd if=/dev/cistern/tank of=/dev/null bs=4k count=1 iflag=direct 2> /dev/null
"$cistern" detach tank
stop

# One command up, one command down: ZFS and ext4, whoever is on them, killed at every step, on another host, and what must be refused.
. /job/lib.sh

modprobe zfs
serve_with="--journal-size 256M"
up() { "$cistern" up "$@"; }
daemon_of() { "$cistern" status --json | grep -o '"pid": *[0-9]*' | head -1 | tr -dc 0-9; }

"$cistern" up tank --on /srv/tank --size 1G --dry-run > /tmp/plan
grep -q "^1. serve" /tmp/plan && grep -q "^2. attach" /tmp/plan || fail "the plan says: $(cat /tmp/plan)"
[ ! -e /srv/tank ] || fail "a dry run made something"
refused 2 "nothing is known of tank" up tank
refused 4 "no volume at" up tank --on /srv/tank
up tank --on /srv/tank --size 1G -- $serve_with
mountpoint -q /tank
[ "$(zpool get -Hp -o value ashift tank)" = 12 ]
for i in $(seq 20); do head -c 1M /dev/urandom > /tank/f$i; done
(cd /tank && sha256sum f*) > /tmp/sums
up tank # nothing is to be done

# Somebody is on it: who, and nothing is changed.
sleep 1000 < /tank/f1 &
holder=$!
refused 3 "process $holder (sleep) uses /tank/f1" "$cistern" down tank
mountpoint -q /tank
kill $holder; wait $holder || true

# The daemon is killed, and comes back by itself under the pool.
killed=$(daemon_of)
kill -KILL "$killed"
zpool sync tank # waits for it
[ "$(daemon_of)" != "$killed" ]
up tank
(cd /tank && sha256sum -c --quiet /tmp/sums)
# The daemon is started again under fio on the pool: nobody sees more than a pause.
fio --name=a --filename=/tank/fio --ioengine=psync --fsync=1 --rw=randwrite --bs=4k --size=64m --time_based --runtime=20 --numjobs=4 \
  --verify=crc32c --verify_fatal=1 --group_reporting --output-format=json > /tmp/fio.json &
load=$!
for turn in 1 2 3; do
  sleep 3
  begin=$(date +%s%N)
  up tank --restart > /dev/null
  echo "restart: $((($(date +%s%N) - begin) / 1000000)) ms"
done
wait "$load" || fail "fio ends with $?"
rm /tank/fio
no_errors
begin=$(date +%s%N)
"$cistern" down tank > /tmp/said
echo "down of a pool of 1G: $((($(date +%s%N) - begin) / 1000000)) ms"
grep -q "safe to disconnect" /tmp/said || fail "down says: $(cat /tmp/said)"
[ ! -e /sys/block/nbd0/pid ]
"$cistern" down tank | grep -q "safe to disconnect" # again: it looks again
no_errors

# Killed in each step, and run again, each verb ends where it should.
dmesg --clear
for nth in 1 2 3 4; do
  killed_in $nth up tank
  up tank > /dev/null
  (cd /tank && sha256sum -c --quiet /tmp/sums)
  killed_in $nth down tank
  "$cistern" down tank | grep -q "safe to disconnect" || fail "down, killed in step $nth, does not end"
done
no_errors

# What is kept is kept here: nothing is lost by it, and nobody is told that it is safe.
up tank
"$cistern" pause /srv/tank
head -c 8M /dev/urandom > /tank/late; sha256sum /tank/late > /tmp/late
"$cistern" down tank --keep-dirty > /tmp/said
grep -q "in the journal of this host alone" /tmp/said || fail "it says: $(cat /tmp/said)"
"$cistern" resume /srv/tank 2> /dev/null || true
up tank
"$cistern" resume /srv/tank
sha256sum -c --quiet /tmp/late
"$cistern" down tank | grep -q "safe to disconnect"

# Another host, which knows nothing of it.
( export STATE_DIRECTORY=/tmp/state-2 CACHE_DIRECTORY=/tmp/cache-2
  up tank --on /srv/tank -- $serve_with
  (cd /tank && sha256sum -c --quiet /tmp/sums)
  # What a host leaves behind that is lost with its pool imported: a clone of this moment.
  zpool sync tank
  "$cistern" snapshot --wait /srv/tank@lost
  "$cistern" clone /srv/tank@lost /srv/lost
  "$cistern" down tank | grep -q "safe to disconnect" )

# It is imported by no other host that is not told to.
( export STATE_DIRECTORY=/tmp/state-3 CACHE_DIRECTORY=/tmp/cache-3
  echo 77 > /sys/module/spl/parameters/spl_hostid
  refused 3 "which did not export it" up tank --on /srv/lost -- $serve_with
  up tank --take-over
  (cd /tank && sha256sum -c --quiet /tmp/sums)
  "$cistern" down tank | grep -q "safe to disconnect"
  echo 0 > /sys/module/spl/parameters/spl_hostid )

# What is there and is not what it was is not overwritten.
rm -r /srv/tank
refused 5 "is empty, and tank (zfs" up tank --size 1G
"$cistern" down tank | grep -q "safe to disconnect"
no_errors

# Another filesystem.
refused 2 "where is home to be mounted" up home --on /srv/home --size 1G --fs ext4
rm -r /tmp/state-2 /tmp/state-3
up home --on /srv/home --size 1G --fs ext4 --mount /mnt/home -- --journal-size 64M
echo content > /mnt/home/file
refused 2 "known here as ext4, and not xfs" up home --fs xfs
"$cistern" down home | grep -q "safe to disconnect"
up home
[ "$(cat /mnt/home/file)" = content ]
( cd /mnt/home; refused 3 "uses /mnt/home" "$cistern" down home )
"$cistern" down home | grep -q "safe to disconnect"
no_errors

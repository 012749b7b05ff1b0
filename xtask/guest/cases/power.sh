# Power cuts: the first leaves the host's disk, and the pool has everything that was synced; after the second there is the store alone, and
# on another host no more is missing than the daemon had said.
#: disk=3G boots=3
boot=$(cat /job/boot)
disk=/dev/disk/vm/disk
[ "$boot" != 1 ] || mkfs.ext4 -q $disk
mkdir -p /disk; mount $disk /disk
. /job/lib.sh
export STATE_DIRECTORY=/disk/state CACHE_DIRECTORY=/disk/cache
store=/disk/store/tank; mkdir -p /disk/store
modprobe zfs
ms() { date +%s%3N; }
cut() { # reported first: nothing comes after it
  trap - ERR; vm-report 0; sleep 0.2; echo b > /proc/sysrq-trigger; sleep 60
}
keep() { echo "$2" > "/disk/$1.new"; sync "/disk/$1.new"; mv "/disk/$1.new" "/disk/$1"; sync /disk; }

case $boot in
1)
  "$cistern" up tank --on $store --size 1G -- --journal-size 256M
  ( while :; do head -c 1M /dev/urandom > /tank/junk.$((RANDOM % 20)); done ) &
  # What was synced is written down elsewhere, behind the sync.
  ( n=0; while :; do n=$((n + 1)); echo $n > /tank/synced; sync /tank/synced; keep synced $n; done ) &
  until [ "$(cat /disk/synced 2> /dev/null || echo 0)" -gt 100 ]; do sleep 0.2; done
  cut ;;
2)
  "$cistern" up tank
  [ "$(cat /tank/synced)" -ge "$(cat /disk/synced)" ] || fail "$(cat /disk/synced) was synced, and $(cat /tank/synced) is there"
  echo "synced: $(cat /disk/synced), found: $(cat /tank/synced)"
  zpool scrub -w tank
  zpool status -v tank | grep -q 'No known data errors' || fail "$(zpool status -v tank)"
  no_errors
  ( while :; do head -c 1M /dev/urandom > /tank/junk.$((RANDOM % 20)); done ) &
  ( while :; do ms > /tank/time.new; mv /tank/time.new /tank/time; sync /tank/time; done ) &
  sleep 20
  "$cistern" status --json > /tmp/status
  keep age "$(grep -o '"dirty_age_ms": *[0-9]*' /tmp/status | head -1 | tr -dc 0-9)"
  keep end "$(ms)"
  cut ;;
3)
  export STATE_DIRECTORY=/disk/state-3 CACHE_DIRECTORY=/disk/cache-3
  refused 3 "take-over" "$cistern" up tank --on $store -- --journal-size 256M
  "$cistern" up tank --on $store --take-over
  missing=$(($(cat /disk/end) - $(cat /tank/time)))
  echo "missing: $missing ms; the oldest that was not uploaded was $(cat /disk/age) ms old"
  # What the guest's clock lost between the two looks, and the time between two stamps.
  [ "$missing" -le $(($(cat /disk/age) + 2000)) ] || fail "more is missing than was said"
  zpool scrub -w tank
  zpool status -v tank | grep -q 'No known data errors' || fail "$(zpool status -v tank)"
  "$cistern" down tank | grep -q "safe to disconnect"
  no_errors ;;
esac

# Memory runs short: dirty pages of a filesystem on a volume, swap on another, and a daemon that may have 256 MiB. Everybody gets on.
. /job/lib.sh
mkdir -p /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup 2> /dev/null || true
mkdir /sys/fs/cgroup/daemon /sys/fs/cgroup/hog
echo +memory > /sys/fs/cgroup/cgroup.subtree_control
echo 256M > /sys/fs/cgroup/daemon/memory.max
echo 128M > /sys/fs/cgroup/hog/memory.max
umount /srv; mount -t tmpfs -o size=1300M none /srv
modprobe loop; mkdir /state; truncate -s 700M /srv/state; mkfs.ext4 -q /srv/state; mount -o loop /srv/state /state # the journal on a disk, not in the daemon's memory
export STATE_DIRECTORY=/state/state CACHE_DIRECTORY=/state/cache
mkfifo /tmp/ready
sh -c 'echo $$ > /sys/fs/cgroup/daemon/cgroup.procs; exec "$@"' sh "$cistern" serve /srv/tank /srv/swap --create 600M --memory 64M --journal-size 128M \
  --cache-size 64M > /tmp/ready 2>> /tmp/serve.log &
daemon=$!
exec 3< /tmp/ready; read -r line <&3; case $line in serving*) ;; *) fail "the daemon says: $line" ;; esac
"$cistern" attach tank; "$cistern" attach swap
mkswap /dev/cistern/swap > /dev/null; swapon /dev/cistern/swap
mkfs.ext4 -q /dev/cistern/tank; mount /dev/cistern/tank /mnt
# Three who need more than they may have, and one who dirties what he can.
for i in 1 2 3; do
  ( echo $BASHPID > /sys/fs/cgroup/hog/cgroup.procs; awk -v seed=$i 'BEGIN { for (i = 0; i < 900000; i++) a[i] = seed * i; for (i = 0; i < 900000; i++) s += a[i]; print s > "/tmp/hog" seed }' ) &
  hogs="${hogs:-} $!"
done
for round in 1 2 3; do
  for i in $(seq 8); do head -c 50M /dev/zero | tr '\0' "$round" > /mnt/f$i; done
  sync
  echo "round $round: swap used $(awk '/SwapTotal/ { t = $2 } /SwapFree/ { print int((t - $2) / 1024) }' /proc/meminfo) MiB, the daemon has $(awk '/VmRSS/ { print int($2 / 1024) }' /proc/$daemon/status) MiB"
done
for hog in $hogs; do wait "$hog" || fail "one who swapped ends with $?"; done
for i in 1 2 3; do [ "$(cat /tmp/hog$i)" = "$(awk -v seed=$i 'BEGIN { printf "%d", seed * 900000 * 899999 / 2 }' | awk '{ print $1 + 0 }')" ] || echo "hog $i: $(cat /tmp/hog$i)"; done
echo 3 > /proc/sys/vm/drop_caches
for i in $(seq 8); do [ "$(tr -d 3 < /mnt/f$i | wc -c)" = 0 ] || fail "f$i has something else"; done
grep -E "oom_kill [1-9]" /sys/fs/cgroup/daemon/memory.events && fail "the daemon was killed"
swapoff /dev/cistern/swap
umount /mnt
no_errors
"$cistern" detach tank; "$cistern" detach swap
stop

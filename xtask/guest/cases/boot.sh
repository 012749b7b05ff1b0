# systemd runs a stack: daemon, connections and pool are services, restarts are not noticed, a shutdown takes them down in the right
# order, and the next boot has everything.
#: init=systemd disk=3G boots=2
set -eu
export PATH=/usr/sbin:/usr/bin
boot=$(cat /job/boot)
[ "$(cat /proc/1/comm)" = systemd ]
disk=/dev/disk/vm/disk
[ "$boot" = 2 ] || mkfs.ext4 -q $disk
mkdir -p /disk; mount $disk /disk
mkdir -p /disk/state /disk/cache /disk/store /var/lib/cistern /var/cache/cistern
mount --bind /disk/state /var/lib/cistern
mount --bind /disk/cache /var/cache/cistern
install -m 755 /job/cistern /usr/bin/cistern
cp /job/*.service /etc/systemd/system/
fail() { echo "FAILED: $*"; journalctl -q --no-pager -n 60; dmesg | tail -n 20; exit 1; }
trap 'fail "line $LINENO"' ERR
no_errors() { ! dmesg | grep -iE 'I/O error|buffer i/o|returned error' || fail "the kernel saw errors"; }
modprobe zfs; modprobe nbd

# Somebody who uses the pool as a service, until it is stopped; and what looks at the end, when all that is ours has stopped.
cat > /etc/systemd/system/writer.service <<'UNIT'
[Unit]
Requires=cistern-pool@tank.service
After=cistern-pool@tank.service
[Service]
ExecStart=/bin/sh -c 'n=0; while :; do n=$((n+1)); echo $n > /tank/n; sync /tank/n; sleep 0.1; done'
ExecStop=/bin/sh -c 'echo written at the end > /tank/last'
UNIT
cat > /etc/systemd/system/observer.service <<'UNIT'
[Unit]
Before=cistern@tank.service cistern-attached.service cistern-pool@tank.service
RequiresMountsFor=/disk /var/lib/cistern
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/true
ExecStop=/bin/bash /job/end
TimeoutStopSec=60
UNIT
cat > /job/end <<'END'
exec > /dev/vm-out 2>&1
rc=0
[ -z "$(zpool list -H)" ] || { echo "FAILED: the pool is imported at the end"; rc=1; }
[ ! -e /sys/block/nbd0/pid ] || { echo "FAILED: the device is attached at the end"; rc=1; }
! pgrep -x cistern || { echo "FAILED: a daemon lives at the end"; rc=1; }
! dmesg | grep -iE 'I/O error|buffer i/o|returned error' || { echo "FAILED: the kernel saw errors"; rc=1; }
[ $rc = 0 ] || journalctl -q --no-pager -n 80
vm-report $rc
END
systemctl daemon-reload

if [ "$boot" = 1 ]; then
  systemctl start observer
  # By hand at first, with a daemon of its own, and then by systemd, which takes it over.
  cistern up tank --on /disk/store/tank --size 1G -- --journal-size 256M
  head -c 20M /dev/urandom > /tank/file; sha256sum /tank/file > /disk/sum
  systemctl enable cistern-pool@tank
  systemctl start cistern-pool@tank
  [ "$(systemctl is-active cistern@tank)" = active ]
  pid=$(systemctl show --value --property MainPID cistern@tank)
  [ "$(readlink /proc/$pid/exe)" = /usr/bin/cistern ]
  cistern status | grep -q tank || fail "the service does not serve: $(cistern status)"
  systemctl start writer

  # Restarts of all kinds beside fio that compares: nobody sees more than a pause.
  fio --name=a --filename=/tank/fio --ioengine=psync --fsync=1 --rw=randwrite --bs=4k --size=64m --time_based --runtime=60 --numjobs=4 \
    --verify=crc32c --verify_fatal=1 --group_reporting --output-format=json > /tmp/fio.json &
  load=$!
  for how in "systemctl restart cistern@tank" "cistern up tank --restart" "kill -9" "systemctl restart cistern-attached" "systemctl restart cistern@tank"; do
    sleep 5
    pid=$(systemctl show --value --property MainPID cistern@tank)
    begin=$(date +%s%N)
    case $how in "kill -9") kill -9 "$pid"; zpool sync tank ;; *) $how ;; esac
    echo "$how: $((($(date +%s%N) - begin) / 1000000)) ms"
    [ "$(systemctl is-active cistern@tank)" = active ] || fail "after $how it is $(systemctl is-active cistern@tank)"
  done
  wait $load || fail "fio ends with $?"
  # When the service took over from the daemon begun by hand, and three times by request.
  handed_on=$(journalctl -q -u cistern@tank | grep -c "keep the connections that they had") || true
  [ "$handed_on" = 4 ] || fail "the device had the connection of the daemon before $handed_on times"
  sha256sum -c --quiet /disk/sum
  no_errors

  # Down by hand: systemd knows it, and starts nothing again.
  systemctl stop writer
  rm /tank/fio
  cistern down tank | grep -q "safe to disconnect"
  for i in $(seq 100); do [ "$(systemctl is-active cistern-pool@tank)" = inactive ] && break; sleep 0.1; done
  [ "$(systemctl is-active cistern-pool@tank)" = inactive ]
  [ "$(systemctl is-active cistern@tank)" = inactive ]
  # Where it is enabled, `up` by hand lets systemd start the daemon.
  cistern up tank
  [ "$(systemctl is-active cistern@tank)" = active ]
  systemctl start writer
  [ "$(systemctl is-active cistern-pool@tank)" = active ]
  cistern pause /disk/store/tank
  head -c 8M /dev/urandom > /tank/late; sha256sum /tank/late >> /disk/sum
  touch /run/vm-later
  systemctl poweroff --no-block
  exit 0
fi

systemctl start cistern-pool@tank
sha256sum -c --quiet /disk/sum
cistern resume /disk/store/tank
[ "$(cat /tank/last)" = "written at the end" ] || fail "the one who used the pool could not end"
cistern down tank | grep -q "safe to disconnect"
no_errors

# A host sleeps with a pool in use: whoever uses it is frozen first, goes on afterwards, and where somebody waits for the store it does not sleep.
#: init=systemd
. /job/lib.sh
unset STATE_DIRECTORY CACHE_DIRECTORY RUNTIME_DIRECTORY
export STATE_DIRECTORY=/var/lib/cistern # for lib.sh's messages; it is the default
install -m 755 "$cistern" /usr/bin/cistern; cistern=/usr/bin/cistern
cp /job/*.service /etc/systemd/system/
modprobe zfs; modprobe nbd
mkdir -p /var/lib/cistern; mount -t tmpfs none /var/lib/cistern
for n in writer reader; do
  printf '[Service]\nExecStart=/bin/bash /job/%s\n' $n > /etc/systemd/system/$n.service
done
echo 'cd /tank; n=0; while :; do n=$((n+1)); echo $n > n.new; mv n.new n; sleep 0.02; done' > /job/writer
echo 'exec dd if=/home2/file of=/dev/null bs=4k iflag=direct' > /job/reader
systemctl daemon-reload
still() { local was; was=$(cat /tank/n); sleep 1; [ "$(cat /tank/n)" = "$was" ]; }

"$cistern" up tank --on /srv/tank --size 1G -- --journal-size 64M
systemctl enable -q cistern-pool@tank
systemctl start cistern-pool@tank cistern-attached
"$cistern" freeze > /tmp/said # nobody is there
grep -q "^0 control groups are frozen" /tmp/said || fail "freeze says: $(cat /tmp/said)"
"$cistern" thaw
systemctl start writer
until [ -e /tank/n ]; do sleep 0.1; done
"$cistern" freeze > /tmp/said
grep -q "^1 control groups are frozen" /tmp/said || fail "freeze says: $(cat /tmp/said)"
still || fail "the writer is not frozen"
"$cistern" freeze # again
"$cistern" thaw
! still || fail "the writer does not go on"

# By systemd, before and after sleep. The guest's sleep is a hibernation that finds nowhere to write its image: all processes are stopped, memory is
# copied, all devices are stopped and started, and everything goes on.
printf '[Sleep]\nSuspendState=disk\n' > /etc/systemd/sleep.conf
systemctl enable -q cistern-sleep
slept() { dmesg | grep -c "hibernation exit" || true; }
systemctl suspend || true
until [ "$(slept)" = 1 ] && [ "$(systemctl is-active cistern-sleep)" != active ] && [ ! -e /var/lib/cistern/frozen.json ]; do sleep 0.1; done
dmesg | grep -q "Image created" || fail "it did not sleep"
! still || fail "the writer does not go on after sleep"
echo "the guest slept, and the writer went on"
no_errors

# Somebody waits for a store that does not answer, here a daemon that is gone: not now, nobody is frozen, and the host stays awake.
serve /srv/home --create 256M --journal-size 16M
"$cistern" attach /srv/home
mkdir /home2; mkfs.ext4 -q /dev/cistern/home; mount /dev/cistern/home /home2
head -c 8M /dev/urandom > /home2/file; sync
crash
systemctl start reader
until grep -q "^State:.D" "/proc/$(systemctl show --value --property MainPID reader)/status"; do sleep 0.1; done
begin=$(date +%s%N)
refused 3 "not now: a process of /system.slice/reader.service waits: process" "$cistern" freeze
echo "not now, after $((($(date +%s%N) - begin) / 1000000)) ms"
[ ! -e /var/lib/cistern/frozen.json ]
! still || fail "the writer is frozen"
systemctl suspend || true
until systemctl is-failed -q cistern-sleep; do sleep 0.1; done
until [ -z "$(systemctl list-jobs --no-legend)" ] || systemctl list-jobs --no-legend | grep -qv sleep; do sleep 0.1; done
[ "$(slept)" = 1 ] || fail "it slept"
! still || fail "the writer is frozen"
umount -l /home2
"$cistern" detach /srv/home --force
systemctl stop writer
"$cistern" down tank 2> /tmp/steps | grep -q "safe to disconnect" || fail "$(cat /tmp/steps)"
[ "$(grep -c "^stop the daemon" /tmp/steps)" = 1 ] || fail "$(cat /tmp/steps)"

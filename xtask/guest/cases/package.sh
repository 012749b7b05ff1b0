# Debian's package: installed and serving by two commands, upgraded under a pool and fio, not removed while in use; removed and purged it takes
# no data with it.
#: init=systemd disk=3G packages
set -eu
export PATH=/usr/sbin:/usr/bin DEBIAN_FRONTEND=noninteractive
disk=/dev/disk/vm/disk
mkfs.ext4 -q $disk; mkdir -p /disk; mount $disk /disk
# The root is small and in memory.
for dir in lib cache; do cp -a /var/$dir /disk/; mount --bind /disk/$dir /var/$dir; done
mkdir /disk/store
fail() { echo "FAILED: $*"; tail -n 20 /tmp/apt /tmp/serve 2> /dev/null; journalctl -q --no-pager -n 40; dmesg | tail -n 20; exit 1; }
trap 'fail "line $LINENO"' ERR
no_errors() { ! dmesg | grep -iE 'I/O error|buffer i/o|returned error' || fail "the kernel saw errors"; }
modprobe zfs; modprobe nbd

package=$(ls /job/cistern_0*.deb) newer=$(ls /job/cistern_9*.deb)
version() { dpkg-deb -f "$1" Version; }
apt() { apt-get -q -y "$@" > /tmp/apt 2>&1 < /dev/null; }
said() { grep -q -- "$1" /tmp/apt || fail "apt does not say: $1"; }
state() { [ "$(dpkg-query -W -f '${db:Status-Status} ${Version}' cistern)" = "$1" ] || fail "it is $(dpkg-query -W cistern)"; }
serves() { # VERSION
  cistern status | grep -q "version $1\$" || fail "served is $(cistern status)"
  [ "$(zpool list -H -o health tank)" = ONLINE ] || fail "the pool is $(zpool list -H -o health tank)"
}
store() { (cd /disk/store; find . -type f -print0 | sort -z | xargs -0 sha256sum); }

# The two commands of the page.
begin=$(date +%s%N)
apt install "$package" || fail "apt ends with $?"
state "installed $(version "$package")"
cd /disk
mkfifo /tmp/ready
cistern serve ./tank --create 10G > /tmp/ready 2> /tmp/serve & daemon=$!
exec 3< /tmp/ready; read -r ready <&3
case $ready in serving*) ;; *) fail "it says: $ready" ;; esac
echo "installed and serving by two commands: $((($(date +%s%N) - begin) / 1000000)) ms"
! apt remove cistern || fail "removed while it serves"
said "in use (processes: $daemon)"
kill -INT $daemon; wait $daemon || fail "serve ends with $?"
exec 3<&-
rm -rf tank

# What a package brings.
[ "$(cistern --version)" = "cistern $(version "$package")" ]
for file in man/man1/cistern.1.gz man/man1/cistern-serve.1.gz bash-completion/completions/cistern zsh/vendor-completions/_cistern \
  fish/vendor_completions.d/cistern.fish doc/cistern/copyright doc/cistern/THIRD-PARTY.gz; do
  [ -s /usr/share/$file ] || fail "there is no /usr/share/$file"
done
cistern doctor > /tmp/doctor 2>&1 || { cat /tmp/doctor; fail "doctor ends with $?"; }

# Upgraded under load: nothing is restarted, until somebody does.
cistern up tank --on /disk/store/tank --size 1G -- --journal-size 256M > /dev/null
systemctl enable -q cistern-pool@tank cistern-attached
systemctl start cistern-attached cistern-pool@tank
echo '# mine' >> /etc/cistern/cistern.toml
head -c 20M /dev/urandom > /tank/file; sha256sum /tank/file > /disk/sum
fio --name=a --filename=/tank/fio --ioengine=psync --fsync=1 --rw=randwrite --bs=4k --size=64m --time_based --runtime=60 --numjobs=4 \
  --verify=crc32c --verify_fatal=1 --group_reporting --output-format=json > /tmp/fio.json & load=$!
sleep 3
apt install "$newer" || fail "apt ends with $?"
said "what runs goes on with the version before"
state "installed $(version "$newer")"
serves "$(version "$package")"
tail -n 1 /etc/cistern/cistern.toml | grep -q mine || fail "the settings were replaced"
systemctl restart 'cistern@*'
systemctl restart cistern-attached
serves "$(version "$newer")"
! apt remove cistern || fail "removed under a pool"
said "cistern is in use"
state "installed $(version "$newer")"
serves "$(version "$newer")"
kill -0 $load || fail "fio ended too early"
wait $load || fail "fio ends with $?"
rm /tank/fio
no_errors

# Removed and purged: what it knew and what it stored stay.
cistern down tank | grep -q "safe to disconnect" || fail "down"
systemctl disable -q --now cistern-pool@tank cistern-attached
store > /disk/before
echo AWS_REGION=eu-1 > /etc/cistern/env
apt remove cistern || fail "apt ends with $?"
[ ! -e /usr/bin/cistern ] && [ -e /etc/cistern/cistern.toml ] && [ -e /var/lib/cistern ] && [ -e /var/cache/cistern ]
apt purge cistern || fail "apt ends with $?"
said "/var/lib/cistern stays"
[ ! -e /etc/cistern/cistern.toml ] && [ -e /etc/cistern/env ] && [ ! -e /var/cache/cistern ] && [ -e /var/lib/cistern ]
store | cmp - /disk/before || fail "the store changed"

# Whoever installs it again has what was there.
apt install "$newer" || fail "apt ends with $?"
cistern up tank > /dev/null
sha256sum -c --quiet /disk/sum
cistern down tank | grep -q "safe to disconnect"
no_errors

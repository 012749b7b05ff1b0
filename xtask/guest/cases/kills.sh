# Ten minutes on ext4 and ten on ZFS with a kill -9 of the daemon every few seconds, beside fio that compares every block: no request fails, the
# pool counts no error and a scrub finds none. Prints how long the longest request took.
#: disk=6G
. /job/lib.sh

mkfs.ext4 -q /dev/disk/vm/disk; mkdir /disk; mount /dev/disk/vm/disk /disk; mkdir /disk/store
# A daemon is back within two seconds, as a rule, and then has five.
kills() { printf 'crash %.0s' {1..95}; }
# What is overwritten meanwhile stays in the store: no daemon lives for as long as it is kept.
tank="/disk/store/tank --create 1G --journal-size 256M"

serve
"$cistern" attach tank
mkfs.ext4 -q /dev/cistern/tank; mount /dev/cistern/tank /mnt
begin=$(date +%s)
echo "ext4:"; verified_over /mnt/file $(kills)
echo "$(($(date +%s) - begin)) s"
umount /mnt
e2fsck -fn /dev/cistern/tank > /dev/null
wipefs -qa /dev/cistern/tank

modprobe zfs
zpool create -f -o ashift=12 -o cachefile=none -O atime=off pool /dev/cistern/tank
begin=$(date +%s)
echo "zfs:"; verified_over /pool/file $(kills)
echo "$(($(date +%s) - begin)) s"
scrubbed pool
zpool export pool
no_errors
"$cistern" detach tank
stop

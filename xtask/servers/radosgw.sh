#!/usr/bin/env bash
# Runs a real radosgw 16.2.15 over one OSD in memory, without a bucket: Debian 12's packages, unpacked and not installed.
#
#   xtask/servers/radosgw.sh DIR PORT ACCESS_KEY SECRET_KEY
#
# DIR is an empty directory, which gets 300 MB. Answers on loopback at PORT; its monitor has a port between 20000 and 28000. Runs until it is killed, and all that it started ends
# with it.
set -euo pipefail
version=16.2.15+ds-0+deb12u2
dir=$(readlink -f "$1") port=$2 access=$3 secret=$4
monitor=$((port % 8000 + 20000))
mkdir -p "$dir"/{debs/partial,root,mon,osd,rgw,run,log}
apt-get install -y -qq --download-only --no-install-recommends -o "Dir::Cache::archives=$dir/debs" \
    "radosgw=$version" "ceph-mon=$version" "ceph-osd=$version"
for deb in "$dir"/debs/*.deb; do dpkg-deb --extract "$deb" "$dir/root"; done
root=$dir/root lib=$dir/root/usr/lib/x86_64-linux-gnu
export PATH="$root/usr/bin:$root/usr/sbin:$PATH" LD_LIBRARY_PATH="$lib:$root/lib/x86_64-linux-gnu:$lib/ceph"
export PYTHONPATH="$root/usr/lib/python3/dist-packages" CEPH_CONF="$dir/ceph.conf"
fsid=00000000-0000-4000-8000-000000000001 osd=00000000-0000-4000-8000-000000000002
cat > "$CEPH_CONF" <<CONF
[global]
fsid = $fsid
mon host = [v1:127.0.0.1:$monitor/0]
ms bind msgr2 = false
public addr = 127.0.0.1
cluster addr = 127.0.0.1
auth cluster required = none
auth service required = none
auth client required = none
mon data = $dir/mon
osd data = $dir/osd
rgw data = $dir/rgw
keyring = $dir/keyring
run dir = $dir/run
admin socket = $dir/run/\$name.asok
log file = $dir/log/\$name.log
osd objectstore = memstore
osd class dir = $lib/rados-classes
erasure code dir = $lib/ceph/erasure-code
mon allow pool size one = true
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
osd pool default pgp num = 1
osd pool default pg autoscale mode = off
mon max pg per osd = 1000
osd crush chooseleaf type = 0
rgw frontends = beast endpoint=127.0.0.1:$port
CONF
ceph-authtool --create-keyring "$dir/keyring" --gen-key -n mon. --cap mon 'allow *'
ceph-authtool "$dir/keyring" --gen-key -n client.admin --cap mon 'allow *' --cap osd 'allow *'
monmaptool --create --fsid "$fsid" --addv a "[v1:127.0.0.1:$monitor]" "$dir/monmap"
ceph-mon -i a --mkfs --monmap "$dir/monmap" --keyring "$dir/keyring"
begin() { setpriv --pdeathsig KILL "$@" & }
begin ceph-mon -i a -f
ceph --connect-timeout 60 osd new "$osd"
ceph-osd -i 0 --mkfs --osd-uuid "$osd"
begin ceph-osd -i 0 -f
begin radosgw -n client.admin -f
timeout 120 radosgw-admin user create --uid user --display-name user --access-key "$access" --secret "$secret"
wait

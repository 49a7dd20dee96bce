set -eu
nft -f - <<RULES
table ip ccmlab
delete table ip ccmlab
table ip ccmlab {
  chain postrouting {
    type nat hook postrouting priority srcnat;
    ip saddr 10.244.0.0/16 ip daddr != 10.244.0.0/16 masquerade
  }
}
RULES
ip route replace unreachable 10.244.0.0/16 proto 200
ip -4 route show proto 200 type unicast | while read -r destination rest; do
  case " 10.244.1.0/24 10.244.2.0/24 " in
    *" $destination "*) ;;
    *) ip route del "$destination" proto 200 ;;
  esac
done
ip route replace 10.244.1.0/24 via 10.123.20.1 proto 200
ip route replace 10.244.2.0/24 via 10.123.20.2 proto 200

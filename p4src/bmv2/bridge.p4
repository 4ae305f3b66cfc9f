// Bridging of frames that are neither ours nor IPv4 to a host (ARP, IPv6, LLDP, frames with a VLAN tag, multicast), so
// that the switch can share an ordinary network. Only Ethernet addresses count; VLAN tags stay as they are.
//
//   (ingress port, destination MAC)  --first that matches--> bridge(port)     unchanged, to one port (the CPU's too)
//                                    |                       flood(group)     unchanged, to every port of a group
//                                    --none---------------> dropped
//
// A flood must not come back: its group has the ports of a spanning tree, but not the one of arrival, which the control
// plane ensures. Bridged frames have no verdict. The switch learns no addresses; without entries it drops these frames.
#ifndef INART_BRIDGE_P4
#define INART_BRIDGE_P4

#define INART_BRIDGE_TABLE_SIZE 512

control Bridge(in headers_t hdr, inout standard_metadata_t standard_metadata) {
    @name(".bridge") @id(7)
    action bridge(port_t port) {
        standard_metadata.egress_spec = port;
    }

    @name(".flood") @id(8)
    action flood(group_t group) {
        standard_metadata.mcast_grp = group;
    }

    @name(".discard") @id(9)
    action discard() {}

    @name(".bridge_table") @id(3)
    table bridge_table {
        key = {
            standard_metadata.ingress_port: ternary @name("ingress_port");
            hdr.ethernet.dst_addr: ternary @name("destination");
        }
        actions = { bridge; flood; discard; }
        const default_action = discard();
        size = INART_BRIDGE_TABLE_SIZE;
    }

    apply {
        bridge_table.apply();
    }
}

#endif

// Bridging of frames that are neither aggregation packets nor IPv4 to a host (ARP, IPv6, LLDP, frames with a VLAN tag,
// other multicast), so that the switch can share an ordinary network. Only Ethernet addresses count, as in a bridge
// that does not look at VLANs; VLAN tags stay as they are.
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

control Bridge(in headers_t hdr, in ingress_intrinsic_metadata_t ig_intr_md,
               inout ingress_intrinsic_metadata_for_deparser_t ig_dprsr_md,
               inout ingress_intrinsic_metadata_for_tm_t ig_tm_md) {
    action bridge(port_t port) {
        ig_tm_md.ucast_egress_port = port;
        ig_tm_md.bypass_egress = 1;
    }

    action flood(group_t group) {
        ig_tm_md.mcast_grp_a = group;
        ig_tm_md.bypass_egress = 1;
    }

    action discard() {
        ig_dprsr_md.drop_ctl = 1;
    }

    table bridge_table {
        key = {
            ig_intr_md.ingress_port: ternary @name("ingress_port");
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

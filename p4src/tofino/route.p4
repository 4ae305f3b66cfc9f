// IPv4 forwarding beside aggregation, so that ping, TCP and background traffic share the network.
//
//   destination --longest prefix--> route(destination MAC, port): TTL - 1, source MAC = gateway, new header checksum
//               --miss------------> dropped
//
// The MAC address that a packet came to does not matter: hosts send everything to the gateway's, by a static neighbour
// entry, or to each other's, for which they ask by ARP where that is bridged (bridge.p4).
// Limits: no options, no ICMP errors; a packet with a bad checksum, with options, to a group MAC address or at the end
// of its TTL is dropped (parser.p4 finds most of that). Routed packets have no verdict.
#ifndef INART_ROUTE_P4
#define INART_ROUTE_P4

control Route(inout headers_t hdr, in metadata_t meta,
              inout ingress_intrinsic_metadata_for_deparser_t ig_dprsr_md,
              inout ingress_intrinsic_metadata_for_tm_t ig_tm_md) {
    action route(mac_addr_t destination_mac, port_t port) {
        hdr.ethernet.dst_addr = destination_mac;
        hdr.ethernet.src_addr = INART_GATEWAY_MAC;
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
        ig_tm_md.ucast_egress_port = port;
        ig_tm_md.bypass_egress = 1;
    }

    action no_route() {
        ig_dprsr_md.drop_ctl = 1;
    }

    table ipv4_table {
        key = { hdr.ipv4.dst_addr: lpm @name("destination"); }
        actions = { route; @defaultonly no_route; }
        const default_action = no_route();
        size = INART_ROUTE_TABLE_SIZE;
    }

    apply {
        if (meta.routable && !meta.checksum_error) {
            ipv4_table.apply();
        } else {
            no_route();
        }
    }
}

#endif

// Parser and deparser.
//
//   start -> ethernet --0x0800--> ipv4 --UDP without options to our group--> group
//                     |                --other--> accept                              (ordinary traffic)
//                     --other---> accept                                              (bridged)
//
//   group --a fragment--> accept                                                      (malformed)
//         --otherwise---> udp --a port of ours--> inart -> values -> accept
//                             --another port----> accept                              (ordinary traffic)
//
// A packet that is too short for its headers leaves the parser with parser_error set and the header that did not fit
// invalid; ingress counts it as malformed, if it is ours. Ingress also finds, by its length, one that is too long.
#ifndef INART_PARSER_P4
#define INART_PARSER_P4

parser InartParser(packet_in packet,
                   out headers_t hdr,
                   inout metadata_t meta,
                   inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHERTYPE_IPV4: parse_ipv4;
            default: accept;
        }
    }

    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.protocol, hdr.ipv4.dst_addr) {
            (4, 5, IPV4_PROTOCOL_UDP, INART_GROUP): parse_group;
            default: accept;
        }
    }

    state parse_group {
        meta.ours = true;
        transition select(hdr.ipv4.flags, hdr.ipv4.frag_offset) {
            (0 &&& IPV4_MORE_FRAGMENTS, 0): parse_udp;
            default: accept;
        }
    }

    state parse_udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.dst_port) {
            INART_UDP_PORT_BASE &&& INART_UDP_PORT_MASK: parse_inart;
            default: parse_other_port;
        }
    }

    state parse_inart {
        packet.extract(hdr.inart);
        packet.extract(hdr.values);
        transition accept;
    }

    state parse_other_port {
        meta.ours = false;
        transition accept;
    }
}

control InartDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.udp);
        packet.emit(hdr.inart);
        packet.emit(hdr.values);
    }
}

#endif

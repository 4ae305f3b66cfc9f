// Parser and deparser.
//
//   start -> ethernet --0x88B5--> inart -> values -> accept
//                     --0x0800--> ipv4 -> accept
//                     --other---> accept                     (dropped in ingress)
//
// A packet that is too short for its headers leaves the parser with parser_error set and the header that did not fit
// invalid; ingress counts it as malformed. One that is too long is found by its length, also in ingress.
#ifndef INART_PARSER_P4
#define INART_PARSER_P4

parser InartParser(packet_in packet,
                   out headers_t hdr,
                   inout metadata_t meta,
                   inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            INART_ETHERTYPE: parse_inart;
            ETHERTYPE_IPV4: parse_ipv4;
            default: accept;
        }
    }

    state parse_inart {
        packet.extract(hdr.inart);
        packet.extract(hdr.values);
        transition accept;
    }

    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        transition accept;
    }
}

control InartDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.inart);
        packet.emit(hdr.values);
        packet.emit(hdr.ipv4);
    }
}

#endif

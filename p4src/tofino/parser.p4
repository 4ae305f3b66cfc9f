// Ingress parser and deparser.
//
//   start -> ethernet --0x88B5--> inart --our version--> first -> second -> accept
//                     |                 --other--------> accept          (malformed)
//                     --0x0800, not to a group--> ipv4 -> accept
//                     --other-------------------> accept                  (dropped in ingress)
//
// A packet that is too short for its headers has parser_err set; ingress counts it as malformed.
// Limit: one that is too long is taken for its first INART_VALUES values: the length is not known in ingress.
#ifndef INART_PARSER_P4
#define INART_PARSER_P4

parser InartIngressParser(packet_in packet, out headers_t hdr, out metadata_t meta,
                          out ingress_intrinsic_metadata_t ig_intr_md) {
    Checksum() ipv4_checksum;

    state start {
        packet.extract(ig_intr_md);
        packet.advance(PORT_METADATA_SIZE);
        meta.verdict = 0;
        meta.kind = KIND_NONE;
        meta.epoch_age = AGE_NONE;
        meta.sequence_age = AGE_NONE;
        meta.operation = DO_NOTHING;
        meta.slot_base = 0;
        meta.slot_offset = 0;
        meta.slot = 0;
        meta.flow = 0;
        meta.claim = 0;
        meta.everyone = 0;
        meta.held = 0;
        meta.left = 0;
        meta.unexpected_low = 0;
        meta.unexpected_high = 0;
        meta.loopback = 0;
        meta.routable = false;
        meta.checksum_error = false;
        transition parse_ethernet;
    }

    state parse_ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type, hdr.ethernet.destination[40:40]) {
            (INART_ETHERTYPE, _): parse_inart;
            (ETHERTYPE_IPV4, 0): parse_ipv4;
            default: accept;
        }
    }

    state parse_inart {
        packet.extract(hdr.inart);
        transition select(hdr.inart.version) {
            INART_VERSION: parse_values;
            default: accept;
        }
    }

    state parse_values {
        packet.extract(hdr.first);
        packet.extract(hdr.second);
        transition accept;
    }

    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        ipv4_checksum.add(hdr.ipv4);
        meta.checksum_error = ipv4_checksum.verify();
        transition select(hdr.ipv4.version, hdr.ipv4.header_words, hdr.ipv4.ttl) {
            (4, 5, 0 &&& 0xFE): accept;
            (4, 5, _): parse_routable;
            default: accept;
        }
    }

    state parse_routable {
        meta.routable = true;
        transition accept;
    }
}

#endif

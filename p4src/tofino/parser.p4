// The ingress parser. The ingress deparser is in checksum.p4.
//
//   start -> ethernet --0x0800 to a group MAC--> UDP without options to our group? --yes--> group
//                     |                                                            --no---> accept   (bridged)
//                     --0x0800 to another------> ipv4 -> accept                                      (routed)
//                     --other------------------> accept                                              (bridged)
//
//   group --a fragment------> accept                                                     (malformed)
//         --a port of ours--> outer --lengths--> inart --version--> first -> second -> tail -> accept
//         |                         --other----> accept --other---> accept               (malformed)
//         --another port----> accept                                                     (bridged)
//
// The parser extracts an IPv4 header either as outer or as ipv4, so it looks ahead until it knows which. It selects on
// the MAC address, which follows from the group, before anything else: a bit of it that is kept for later would take a
// match register from the fields that are compared in between.
// A packet that is too short for its headers has parser_err set; ingress counts it as malformed if it is an aggregation
// packet. A frame's check sequence is visible to the parser, which therefore extracts four bytes behind the values
// (tail): a frame that is shorter than its headers say does not have them, and gets parser_err.
// Limit: ingress does not know the length of a frame, only the lengths that its IPv4 and UDP headers say. A frame that
// is longer than those is taken to be as long as they say.
#ifndef INART_PARSER_P4
#define INART_PARSER_P4

parser InartIngressParser(packet_in packet, out headers_t hdr, out metadata_t meta,
                          out ingress_intrinsic_metadata_t ig_intr_md) {
    Checksum() ipv4_checksum;

    state start {
        packet.extract(ig_intr_md);
        packet.advance(PORT_METADATA_SIZE);
        meta.ours = false;
        meta.verdict = 0;
        meta.kind = KIND_NONE;
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
        meta.next_label = 0;
        meta.generation = 0;
#ifdef INART_SECOND_PASS
        meta.loopback = 0;
#endif
#ifdef INART_FOLD
        meta.step = STEP_FIRST;
        meta.ticket = 0;
        meta.previous = 0;
        meta.joined = 0;
        meta.cell = 0;
#endif
        meta.routable = false;
        meta.checksum_error = false;
        transition parse_ethernet;
    }

    state parse_ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type, hdr.ethernet.dst_addr[40:40]) {
            (ETHERTYPE_IPV4, 0): parse_ipv4;
            (ETHERTYPE_IPV4, 1): look_at_protocol;
            default: accept;
        }
    }

    // One state compares at most 32 bits, so looking ahead takes several.
    state look_at_protocol {
        outer_t outer = packet.lookahead<outer_t>();
        transition select(outer.version, outer.ihl, outer.protocol) {
            (4, 5, IPV4_PROTOCOL_UDP): look_at_destination;
            default: accept;
        }
    }

    state look_at_destination {
        outer_t outer = packet.lookahead<outer_t>();
        transition select(outer.dst_addr) {
            INART_GROUP: look_at_port;
            default: accept;
        }
    }

    state look_at_port {
        outer_t outer = packet.lookahead<outer_t>();
        transition select(outer.flags_frag_offset, outer.dst_port) {
            (0 &&& IPV4_FRAGMENT_MASK, INART_UDP_PORT_BASE &&& INART_UDP_PORT_MASK): parse_outer;
            (0 &&& IPV4_FRAGMENT_MASK, _): accept;
            default: malformed;
        }
    }

    state malformed {
        meta.ours = true;
        transition accept;
    }

    state parse_outer {
        meta.ours = true;
        packet.extract(hdr.outer);
        transition select(hdr.outer.total_len, hdr.outer.hdr_length) {
            (INART_IPV4_LENGTH + 4 * INART_VALUES, INART_UDP_LENGTH + 4 * INART_VALUES): parse_inart;
            default: accept;
        }
    }

    state parse_inart {
        packet.extract(hdr.inart);
        transition select(hdr.inart.version) {
            INART_VERSION: parse_values;
#ifdef INART_FOLD
            FOLDED_VERSION: parse_fold;
#endif
            default: accept;
        }
    }

#ifdef INART_FOLD
    state parse_fold {
        packet.extract(hdr.fold);
        transition select(hdr.fold.step) {
            STEP_STAYS: parse_stays;
            STEP_LEAVES: parse_leaves;
            STEP_READ: parse_read;
            default: accept;
        }
    }

    state parse_stays {
        meta.step = STEP_STAYS;
        transition parse_values;
    }

    state parse_leaves {
        meta.step = STEP_LEAVES;
        transition parse_values;
    }

    // The sum's second half is not extracted; it stays behind the headers.
    state parse_read {
        meta.step = STEP_READ;
        packet.extract(hdr.tail);
        transition accept;
    }
#endif

    state parse_values {
        packet.extract(hdr.first);
        packet.extract(hdr.second);
        packet.extract(hdr.tail);
        transition accept;
    }

    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        ipv4_checksum.add(hdr.ipv4);
        meta.checksum_error = ipv4_checksum.verify();
        transition select(hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.ttl) {
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

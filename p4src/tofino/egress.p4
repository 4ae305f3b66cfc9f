// The egress pipeline, which does nothing: every packet that leaves the switch bypasses it (bypass_egress is set in
// label.p4, route.p4 and bridge.p4).
#ifndef INART_EGRESS_P4
#define INART_EGRESS_P4

struct egress_headers_t {}

struct egress_metadata_t {}

parser InartEgressParser(packet_in packet, out egress_headers_t hdr, out egress_metadata_t meta,
                         out egress_intrinsic_metadata_t eg_intr_md) {
    state start {
        packet.extract(eg_intr_md);
        transition accept;
    }
}

control InartEgress(inout egress_headers_t hdr, inout egress_metadata_t meta,
                    in egress_intrinsic_metadata_t eg_intr_md,
                    in egress_intrinsic_metadata_from_parser_t eg_prsr_md,
                    inout egress_intrinsic_metadata_for_deparser_t eg_dprsr_md,
                    inout egress_intrinsic_metadata_for_output_port_t eg_oport_md) {
    apply {}
}

control InartEgressDeparser(packet_out packet, inout egress_headers_t hdr, in egress_metadata_t meta,
                            in egress_intrinsic_metadata_for_deparser_t eg_dprsr_md) {
    apply {}
}

#endif

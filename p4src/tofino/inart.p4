// InArt for Tofino 1 (TNA) and Tofino 2 (T2NA): aggregation by label, and IPv4 forwarding beside it.
//
//   parser -> UDP to our group and ports: well formed? -> label -> forward, replicate
//          |                                                    -> aggregate: slots -> values -> finish
//          |                              verdicts
//          -> IPv4 to a host: route
//          -> other:          bridge
//
// finish drops an aggregated packet, sends it on, or sends it round by a loopback port to get the rest of its sum. Each
// file is what the one of the same name in p4src/bmv2/ is for v1model, with the same constants and wire format. What
// differs, and why, is in docs/tofino.md; tests/model/tofino.py is a model of the register actions, which the tests
// run.
//
// Build options (python -m p4src.build --target tna passes them): INART_VALUES values in a packet, INART_SLOTS slots,
// INART_LABEL_TABLE_SIZE and INART_ROUTE_TABLE_SIZE entries. An ALU of Tofino 2 gives out both words of a pair
// (INART_ONE_PASS), and there fold.p4 adds 128 values in two passes (INART_FOLD). All of the work is done in ingress;
// packets bypass egress.
#include <core.p4>
#if __TARGET_TOFINO__ == 2
#include <t2na.p4>
#define INART_ONE_PASS
#if INART_VALUES > 96
#define INART_FOLD
#endif
#else
#include <tna.p4>
#if INART_VALUES > 64
#error "Tofino 1 adds at most 64 values"
#endif
#endif

// INART_SECOND_PASS is defined where some packets go round by a loopback port.
#if !defined(INART_ONE_PASS) || defined(INART_FOLD)
#define INART_SECOND_PASS
#endif

// The files with the entries of the tables whose entries differ between the variants.
#ifdef INART_FOLD
#define INART_ENTRIES_OF_SUM "entries/sum_read.p4"
#define INART_ENTRIES_OF_FINISH "entries/finish_fold.p4"
#define INART_ENTRIES_OF_EPOCH "entries/epoch_fold.p4"
#define INART_ENTRIES_OF_DECIDE "entries/decide_fold.p4"
#elif defined(INART_ONE_PASS)
#define INART_ENTRIES_OF_SUM "entries/sum.p4"
#define INART_ENTRIES_OF_FINISH "entries/finish.p4"
#define INART_ENTRIES_OF_EPOCH "entries/epoch.p4"
#define INART_ENTRIES_OF_DECIDE "entries/decide.p4"
#else
#define INART_ENTRIES_OF_SUM "entries/sum_read.p4"
#define INART_ENTRIES_OF_FINISH "entries/finish.p4"
#define INART_ENTRIES_OF_EPOCH "entries/epoch_two_passes.p4"
#define INART_ENTRIES_OF_DECIDE "entries/decide_two_passes.p4"
#endif

#include "../include/constants.p4"
#include "../include/repeat.p4"
#include "pairs.p4"
#include "headers.p4"
#include "parser.p4"
#include "checksum.p4"
#include "counters.p4"
#include "label.p4"
#include "slots.p4"
#include "fold.p4"
#include "values.p4"
#include "finish.p4"
#include "route.p4"
#include "bridge.p4"
#include "egress.p4"

#ifdef INART_ONE_PASS
// A state of Tofino 2's parser can write a container only once, even if it writes different bits of it. Therefore each
// of these fields has a container of its own.
@pa_solitary("ingress", "meta.checksum_error")
@pa_solitary("ingress", "meta.routable")
#ifdef INART_FOLD
@pa_solitary("ingress", "meta.step")
#endif
#endif
control InartIngress(inout headers_t hdr, inout metadata_t meta, in ingress_intrinsic_metadata_t ig_intr_md,
                     in ingress_intrinsic_metadata_from_parser_t ig_prsr_md,
                     inout ingress_intrinsic_metadata_for_deparser_t ig_dprsr_md,
                     inout ingress_intrinsic_metadata_for_tm_t ig_tm_md) {
    Label() label;
    Slots() slots;
#ifdef INART_FOLD
    Fold() fold;
#endif
    Values() values;
    Finish() finish;
    Verdicts() verdicts;
    Route() route;
    Bridge() bridge;

    apply {
        if (meta.ours) {
            if (hdr.tail.isValid() && ig_prsr_md.parser_err == PARSER_ERROR_OK) {
                label.apply(hdr, meta, ig_intr_md, ig_dprsr_md, ig_tm_md);
                slots.apply(hdr, meta);
#ifdef INART_FOLD
                fold.apply(hdr, meta);
#endif
                values.apply(hdr, meta);
                finish.apply(hdr, meta, ig_dprsr_md, ig_tm_md);
            } else {
                meta.verdict = INART_VERDICT_MALFORMED;
                ig_dprsr_md.drop_ctl = 1;
            }
            verdicts.apply(meta);
        } else if (ig_prsr_md.parser_err == PARSER_ERROR_OK) {
            if (hdr.ipv4.isValid()) {
                route.apply(hdr, meta, ig_dprsr_md, ig_tm_md);
            } else {
                bridge.apply(hdr, ig_intr_md, ig_dprsr_md, ig_tm_md);
            }
        } else {
            ig_dprsr_md.drop_ctl = 1;
        }
    }
}

Pipeline(InartIngressParser(), InartIngress(), InartIngressDeparser(),
         InartEgressParser(), InartEgress(), InartEgressDeparser()) pipe;

Switch(pipe) main;

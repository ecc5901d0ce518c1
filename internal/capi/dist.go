package capi

/*
#include <stdlib.h>
#include "loader.h"
*/
import "C"

import "unsafe"

// TCPStore opens c10d's TCPStore: as the server, or as a client of host:port. With world > 0 it waits for that many
// ranks to connect. Port 0 lets the server choose.
func TCPStore(host string, port int, server bool, world int, timeoutMS int64) (Handle, error) {
	return handle(withText(host, func(h *C.char) C.gf_ret {
		return C.load_gf_store_tcp(h, C.int64_t(port), flag(server), C.int64_t(world), C.int64_t(timeoutMS))
	}))
}

// HashStore is a store inside the process.
func HashStore() (Handle, error) { return handle(C.load_gf_store_hash()) }

// PrefixStore is a view of store whose keys all start with prefix.
func PrefixStore(store Handle, prefix string) (Handle, error) {
	return handle(withText(prefix, func(p *C.char) C.gf_ret { return C.load_gf_store_prefix(C.int64_t(store), p) }))
}

// FreeStore closes a store.
func FreeStore(store Handle) { _ = status(C.load_gf_store_free(C.int64_t(store))) }

// StorePort is the port of a TCPStore.
func StorePort(store Handle) (int, error) {
	v, err := result(C.load_gf_store_port(C.int64_t(store)))
	return int(v), err
}

// StoreSet stores value under key.
func StoreSet(store Handle, key string, value []byte) error {
	return status(withText(key, func(k *C.char) C.gf_ret {
		return C.load_gf_store_set(C.int64_t(store), k, unsafe.Pointer(unsafe.SliceData(value)), C.int64_t(len(value)))
	}))
}

// StoreGet waits for key and returns its value.
func StoreGet(store Handle, key string, timeoutMS int64) ([]byte, error) {
	buf := make([]byte, 4096)
	for {
		n, err := result(withText(key, func(k *C.char) C.gf_ret {
			return C.load_gf_store_get(C.int64_t(store), k, C.int64_t(timeoutMS), unsafe.Pointer(&buf[0]), C.int64_t(len(buf)))
		}))
		if err != nil {
			return nil, err
		}
		if int(n) <= len(buf) {
			return buf[:n], nil
		}
		buf = make([]byte, n)
	}
}

// StoreAdd adds delta to the counter under key and returns the sum.
func StoreAdd(store Handle, key string, delta int64) (int64, error) {
	return result(withText(key, func(k *C.char) C.gf_ret {
		return C.load_gf_store_add(C.int64_t(store), k, C.int64_t(delta))
	}))
}

// StoreCheck tells whether key is set.
func StoreCheck(store Handle, key string) (bool, error) {
	v, err := result(withText(key, func(k *C.char) C.gf_ret { return C.load_gf_store_check(C.int64_t(store), k) }))
	return v != 0, err
}

// Reduction operators of collectives, with c10d's numbers.
const (
	ReduceSum = 0
	ReduceAvg = 1
	ReduceMin = 3
	ReduceMax = 4
)

// NewGloo connects a Gloo process group through store. connectMS bounds the connecting, timeoutMS every wait of a
// collective for a peer. host chooses the network interface; empty is the default one.
func NewGloo(store Handle, rank, world int, connectMS, timeoutMS int64, host string) (Handle, error) {
	return handle(withText(host, func(h *C.char) C.gf_ret {
		return C.load_gf_gloo_connect(C.int64_t(store), C.int64_t(rank), C.int64_t(world), C.int64_t(connectMS), C.int64_t(timeoutMS), h)
	}))
}

// FreeGroup closes a process group.
func FreeGroup(pg Handle) { _ = status(C.load_gf_pg_free(C.int64_t(pg))) }

// AbortGroup fails the group's running and later work; false means that this is not possible.
func AbortGroup(pg Handle) (bool, error) {
	n, err := result(C.load_gf_pg_abort(C.int64_t(pg)))
	return n != 0, err
}

// AllGather starts gathering in of every rank into out, in rank order.
func AllGather(pg, out, in Handle) (Handle, error) {
	return handle(C.load_gf_all_gather(C.int64_t(pg), C.int64_t(out), C.int64_t(in)))
}

// AllGatherList starts gathering in of every rank into one tensor per rank.
func AllGatherList(pg Handle, outs []Handle, in Handle) (Handle, error) {
	return handle(C.load_gf_all_gather_list(C.int64_t(pg), handles(outs), C.int64_t(len(outs)), C.int64_t(in)))
}

// ReduceScatter starts reducing in over the ranks and leaving this rank's part in out.
func ReduceScatter(pg, out, in Handle, op int) (Handle, error) {
	return handle(C.load_gf_reduce_scatter(C.int64_t(pg), C.int64_t(out), C.int64_t(in), C.int64_t(op)))
}

// AllReduce starts reducing t over the ranks in place.
func AllReduce(pg, t Handle, op int) (Handle, error) {
	return handle(C.load_gf_all_reduce(C.int64_t(pg), C.int64_t(t), C.int64_t(op)))
}

// Broadcast starts copying root's t to every rank.
func Broadcast(pg, t Handle, root int) (Handle, error) {
	return handle(C.load_gf_broadcast(C.int64_t(pg), C.int64_t(t), C.int64_t(root)))
}

// Send starts sending t to rank dst.
func Send(pg, t Handle, dst, tag int) (Handle, error) {
	return handle(C.load_gf_send(C.int64_t(pg), C.int64_t(t), C.int64_t(dst), C.int64_t(tag)))
}

// Recv starts receiving t from rank src.
func Recv(pg, t Handle, src, tag int) (Handle, error) {
	return handle(C.load_gf_recv(C.int64_t(pg), C.int64_t(t), C.int64_t(src), C.int64_t(tag)))
}

// Barrier starts a barrier.
func Barrier(pg Handle) (Handle, error) { return handle(C.load_gf_barrier(C.int64_t(pg))) }

// WaitWork waits at most timeoutMS; false means that the work still runs.
func WaitWork(work Handle, timeoutMS int64) (bool, error) {
	v, err := result(C.load_gf_work_wait(C.int64_t(work), C.int64_t(timeoutMS)))
	return v != 0, err
}

// WorkDone tells whether the work has ended, well or not.
func WorkDone(work Handle) (bool, error) {
	v, err := result(C.load_gf_work_done(C.int64_t(work)))
	return v != 0, err
}

// FreeWork releases a work handle.
func FreeWork(work Handle) { _ = status(C.load_gf_work_free(C.int64_t(work))) }

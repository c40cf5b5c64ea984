// Package drive puts load on a monitor: engines that push reports, watchers that read them or only count bytes, and the
// HTTP side of engines that registration asks. It is shared by `loadmonitor bench` and by bench/, whose ceilings it drives
// in the same way as the product.
//
//	Engines  ─ HTTP ─► what registration asks of an engine
//	Register ─ gRPC ─► who exists
//	Fleet    ─ gRPC ─► a stream for each worker, several on one connection
//	Reader, View ◄──── one connection for each watcher
//
// It generates what real engines send, as cheaply as it can, because it shares the machine with what it drives. So reports
// are encoded beforehand and only their numbers are replaced, and the sequence of a report is the time at which it was
// sent, in microseconds since the fleet's start: it rises strictly, as rule SEQ1 wants it, and whoever sees a worker's
// sequence knows the delay without looking anything up.
//
// Start reading at fleet.go and message.go, then watch.go.
package drive

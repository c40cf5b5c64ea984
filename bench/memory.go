package main

import "github.com/loadmonitor/loadmonitor/bench/result"

func (b *bench) memory(row *result.Row) error { return nil }

package main

import "context"

func (b *bench) measurePeer(ctx context.Context, r *report) []row { return nil }

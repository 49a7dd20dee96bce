package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestDatagramWindow(t *testing.T) {
	d, err := newDatagramClient(backendAddresses()[0], 2)
	require.NoError(t, err)
	defer func() { _ = d.socket.Close() }()
	require.NoError(t, d.sendNew(0))
	place, err := d.receiveOne()
	require.NoError(t, err)
	assert.Equal(t, 0, place)

	// A datagram that was given up and comes back counts for no place.
	require.NoError(t, d.sendNew(1))
	d.window[1].number = 0
	place, err = d.receiveOne()
	require.NoError(t, err)
	assert.Equal(t, -1, place)

	now := time.Now()
	d.window[0].sent, d.window[1].sent = now, now.Add(-time.Second)
	require.NoError(t, d.replaceLost(now))
	assert.Equal(t, 1, d.lost)
	place, err = d.receiveOne()
	require.NoError(t, err)
	assert.Equal(t, 1, place)
}

func TestDatagramLength(t *testing.T) {
	seen := map[int]bool{}
	for number := range uint64(10_000) {
		n := datagramLength(number)
		require.True(t, n >= 64 && n <= datagramSize, n)
		seen[n] = true
	}
	assert.Len(t, seen, datagramSize-63)
}

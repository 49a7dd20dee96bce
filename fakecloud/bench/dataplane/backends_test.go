package main

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestIsExpectedPiece(t *testing.T) {
	assert.True(t, isExpectedPiece(nil, 7))
	assert.True(t, isExpectedPiece(block, 0))
	assert.True(t, isExpectedPiece(block[5:1000], 5+3*blockSize))
	assert.False(t, isExpectedPiece(block[5:1000], 6), "a byte was left out before")
	assert.False(
		t, isExpectedPiece(slices.Concat(block[5:1000], block[1001:1002]), 5), "a byte was left out at the end",
	)
	both := slices.Concat(block[blockSize-2:], block[:3])
	assert.True(t, isExpectedPiece(both, blockSize-2))
	assert.False(t, isExpectedPiece(both, blockSize-256-2), "a piece was left out")
}

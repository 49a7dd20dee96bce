package cli

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestWideShowsAllColumns(t *testing.T) {
	rows := [][]string{{"a", "why", "3s"}, {"b", "-", "4s"}}
	header, narrow := (&app{}).visibleColumns("NAME +REASON AGE", rows)
	assert.Equal(t, []string{"NAME", "AGE"}, header)
	assert.Equal(t, [][]string{{"a", "3s"}, {"b", "4s"}}, narrow)
	header, all := (&app{wide: true}).visibleColumns("NAME +REASON AGE", rows)
	assert.Equal(t, []string{"NAME", "REASON", "AGE"}, header)
	assert.Equal(t, rows, all)
}

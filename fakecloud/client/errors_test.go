package client_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

func TestErrorNamesFieldOnce(t *testing.T) {
	e := &client.Error{Problem: api.Problem{Detail: "name: is too long", Fields: &[]api.ProblemField{
		{Field: "name", Message: "is too long"}, {Field: "cidr", Message: "is taken"},
	}}}
	assert.EqualError(t, e, "name: is too long; cidr: is taken")
}

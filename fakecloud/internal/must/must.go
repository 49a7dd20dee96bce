// Package must ends a test unless a call succeeds, in the line of the call. It is for tests alone:
//
//	lb := must.Do(c.LoadBalancer(ctx, id))(t)
package must

import "github.com/stretchr/testify/require"

// Do returns what a call answers, and wants the call to succeed.
func Do[A any](answer A, err error) func(t require.TestingT, about ...any) A {
	return func(t require.TestingT, about ...any) A {
		if h, ok := t.(interface{ Helper() }); ok {
			h.Helper()
		}
		require.NoError(t, err, about...)
		return answer
	}
}

// First is Do for a call that answers two things, of which the first counts.
func First[A, B any](answer A, _ B, err error) func(t require.TestingT, about ...any) A {
	return Do(answer, err)
}

// Second is Do for a call that answers two things, of which the second counts.
func Second[A, B any](_ A, answer B, err error) func(t require.TestingT, about ...any) B {
	return Do(answer, err)
}

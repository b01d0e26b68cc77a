package vm

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestConfigDefaults(t *testing.T) {
	c, err := Config{Args: []string{"true"}}.withDefaults()
	require.NoError(t, err)
	require.Equal(t, "/", c.Dir)
	require.Equal(t, DefaultMTU, c.MTU)
	require.Equal(t, DefaultCPUs, c.CPUs)
	require.Equal(t, DefaultMemoryMiB, c.MemoryMiB)
	require.Equal(t, DefaultTimeout, c.Timeout)
	require.NotNil(t, c.Stdout)
}

func TestConfigRefuses(t *testing.T) {
	for want, c := range map[string]Config{
		"no program":             {},
		"is not absolute":        {Args: []string{"a"}, Dir: "tmp"},
		"MTU 200 is outside":     {Args: []string{"a"}, MTU: 200},
		"65 CPUs are outside":    {Args: []string{"a"}, CPUs: 65},
		"less than 256":          {Args: []string{"a"}, MemoryMiB: 64},
		"is negative":            {Args: []string{"a"}, Timeout: -time.Second},
		`"X" is not NAME=value`:  {Args: []string{"a"}, Env: []string{"X"}},
		`"=v" is not NAME=value`: {Args: []string{"a"}, Env: []string{"=v"}},
		"needs a guest and":      {Args: []string{"a"}, Outputs: []Output{{Guest: "/x"}}},
		"256 outputs are over":   {Args: []string{"a"}, Outputs: make([]Output, 256)},
	} {
		_, err := c.withDefaults()
		require.ErrorContains(t, err, want)
	}
}

func TestParseOutput(t *testing.T) {
	for s, want := range map[string]Output{
		"/a":       {"/a", "/a"},
		"/a=b":     {"/a", "b"},
		"/out/=/b": {"/out/", "/b"},
	} {
		got, err := ParseOutput(s)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, s := range []string{"", "=", "a=", "=b"} {
		_, err := ParseOutput(s)
		require.Error(t, err, s)
	}
}

func TestTestOutputs(t *testing.T) {
	args := []string{
		"-test.v=true", "-test.coverprofile=/elsewhere/cover.out", "-test.cpuprofile=cpu.out",
		"-cpuprofile=mine", "--test.trace=t.out", "-test.memprofile=", "test.blockprofile=x", "-test.run=A=B",
	}
	same := func(paths ...string) (outs []Output) {
		for _, p := range paths {
			outs = append(outs, Output{p, p})
		}
		return outs
	}
	require.Equal(t, same("/elsewhere/cover.out", "/dir/cpu.out", "/dir/t.out"), TestOutputs(args, "/dir"))
	require.Equal(t, same("/elsewhere/cover.out", "/o/cpu.out", "/o/t.out"), TestOutputs(append(args, "-test.outputdir=/o"), "/dir"))
	require.Empty(t, TestOutputs(nil, "/dir"))
}

func TestSelectEnv(t *testing.T) {
	environ := []string{"HOME=/h", "PATH=/b", "GOMAXPROCS=2", "VERBENA_X=1", "SECRET=s", "MINE=m=n", "GOODS"}
	require.Equal(t, []string{"HOME=/h", "PATH=/b", "GOMAXPROCS=2", "VERBENA_X=1"}, SelectEnv(environ[:5], nil))
	require.Contains(t, SelectEnv(environ, []string{"MINE"}), "MINE=m=n")
}

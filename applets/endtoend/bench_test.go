package endtoend

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
)

// Each benchmark measures ours and the floor, which is what the kernel itself
// costs, in one run, since only their ratio means something on a noisy machine.
// Run them with `just bench`.

// bare starts sh from a bare Go program and waits for it.
func bare(b *testing.B, mode, script string) {
	cmd := exec.Command("/bin/sh", "-c", script)
	if mode == "pty" {
		m, err := pty.Start(cmd)
		if err != nil {
			b.Fatal(err)
		}
		io.Copy(io.Discard, m)
		cmd.Wait()
		m.Close()
		return
	}
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		b.Fatal(err)
	}
}

func percentile(d []time.Duration, p int) float64 {
	slices.Sort(d)
	return float64(d[len(d)*p/100].Microseconds()) / 1000
}

func BenchmarkRunTrue(b *testing.B) {
	for _, mode := range modes {
		b.Run(mode, func(b *testing.B) {
			s := start(b)
			var floor, ours []time.Duration
			for b.Loop() {
				for range 300 {
					t := time.Now()
					bare(b, mode, "true")
					floor = append(floor, time.Since(t))
					t = time.Now()
					if r := s.run("true", m{"mode": mode}); !r.Done || r.code() != 0 {
						b.Fatalf("%+v", r)
					}
					ours = append(ours, time.Since(t))
				}
			}
			b.ReportMetric(percentile(floor, 50), "floor_p50_ms")
			b.ReportMetric(percentile(ours, 50), "run_p50_ms")
			b.ReportMetric(percentile(ours, 95), "run_p95_ms")
			b.ReportMetric(percentile(ours, 50)/percentile(floor, 50), "ratio")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// cpu is the CPU time of a process, with or without its reaped children.
func cpu(pid int, children bool) time.Duration {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	n := 0
	for i, field := range f[11:15] {
		if v, _ := strconv.Atoi(field); i < 2 || children {
			n += v
		}
	}
	return time.Duration(n) * time.Second / 100
}

func BenchmarkEcho32Clients(b *testing.B) {
	const rounds, jobs, clients = 5, 200, 32
	for _, mode := range modes {
		b.Run(mode, func(b *testing.B) {
			s := start(b)
			s.run("true", m{"mode": mode})
			var floor, ours, wall time.Duration
			each := func(do func()) {
				var wg sync.WaitGroup
				todo := make(chan bool, jobs)
				for range jobs {
					todo <- true
				}
				close(todo)
				for range clients {
					wg.Go(func() {
						for range todo {
							do()
						}
					})
				}
				wg.Wait()
			}
			for b.Loop() {
				for range rounds {
					self, kids := usage(syscall.RUSAGE_SELF), usage(syscall.RUSAGE_CHILDREN)
					each(func() { bare(b, mode, "echo hi") })
					floor += usage(syscall.RUSAGE_SELF) - self + usage(syscall.RUSAGE_CHILDREN) - kids
					runner := s.runner()
					was := cpu(s.cmd.Process.Pid, false) + cpu(runner, true)
					t := time.Now()
					each(func() {
						var r result
						if err := s.try("POST", "/v1/jobs/run", m{"script": "echo hi", "mode": mode}, &r); err != nil || r.Output != "hi\n" {
							b.Error(err, r)
						}
					})
					wall += time.Since(t)
					ours += cpu(s.cmd.Process.Pid, false) + cpu(runner, true) - was
				}
			}
			b.ReportMetric(floor.Seconds()/rounds, "floor_cpu_s")
			b.ReportMetric(ours.Seconds()/rounds, "cpu_s")
			b.ReportMetric(ours.Seconds()/floor.Seconds(), "ratio")
			b.ReportMetric(rounds*jobs/wall.Seconds(), "jobs/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func usage(who int) time.Duration {
	var r syscall.Rusage
	syscall.Getrusage(who, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

func BenchmarkBlockedWaiters(b *testing.B) {
	const waiters, jobs, seconds = 500, 50, 10
	s := start(b)
	var ids []string
	for range jobs {
		ids = append(ids, s.run("sleep 600", m{"timeout": 0}).JobID)
	}
	var asked sync.WaitGroup
	for i := range waiters {
		asked.Add(1)
		go func() {
			asked.Done()
			s.try("POST", "/v1/jobs/"+ids[i%jobs]+"/wait", m{"offset": 0, "timeout": 600}, nil)
		}()
	}
	asked.Wait()
	for s.connections() < waiters {
	}
	for b.Loop() {
		time.Sleep(time.Second) // the last of them settles
		runner := s.runner()
		was := cpu(s.cmd.Process.Pid, false) + cpu(runner, false)
		time.Sleep(seconds * time.Second) // the thing measured is what happens while nothing does
		b.ReportMetric(100*(cpu(s.cmd.Process.Pid, false)+cpu(runner, false)-was).Seconds()/seconds, "percent_of_a_core")
	}
	b.ReportMetric(0, "ns/op")
}

func BenchmarkOutput(b *testing.B) {
	const size = 200 << 20
	script := fmt.Sprintf("yes %s | head -c %d", strings.Repeat("x", 79), size)
	for _, mode := range modes {
		b.Run(mode, func(b *testing.B) {
			s := start(b, withArgs("--retention", "0s", "--gc-interval", "1s"))
			s.run("true")
			runner := s.runner()
			var floor, ours time.Duration
			var grown float64
			for b.Loop() {
				for range 3 {
					floor += bareOutput(b, mode, script)
					was := memory(s.cmd.Process.Pid, "VmHWM") + memory(runner, "VmHWM")
					t := time.Now()
					r := s.run(script, m{"mode": mode, "timeout": 0})
					for !r.Done { // wakes with the end, or once in a while with a page
						s.call("POST", "/v1/jobs/"+r.JobID+"/wait", m{"offset": s.view(r.JobID).Offset, "timeout": 10, "output_limit": 524288}, &r)
					}
					ours += time.Since(t)
					grown = max(grown, memory(s.cmd.Process.Pid, "VmHWM")+memory(runner, "VmHWM")-was)
				}
			}
			b.ReportMetric(3*size/1e6/floor.Seconds(), "floor_MB/s")
			b.ReportMetric(3*size/1e6/ours.Seconds(), "MB/s")
			b.ReportMetric(100*floor.Seconds()/ours.Seconds(), "percent_of_floor")
			b.ReportMetric(grown/1024, "peak_growth_MB")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// bareOutput is a read loop on a terminal, or a copy from a pipe into a file.
func bareOutput(b *testing.B, mode, script string) time.Duration {
	cmd := exec.Command("/bin/sh", "-c", script)
	t := time.Now()
	if mode == "pty" {
		m, err := pty.Start(cmd)
		if err != nil {
			b.Fatal(err)
		}
		for buf := make([]byte, 64<<10); ; {
			if _, err := m.Read(buf); err != nil {
				break
			}
		}
		cmd.Wait()
		m.Close()
		return time.Since(t)
	}
	f, err := os.Create(filepath.Join(scratch(b), "out"))
	if err != nil {
		b.Fatal(err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	p, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		b.Fatal(err)
	}
	for buf := make([]byte, 64<<10); ; {
		n, err := p.Read(buf)
		f.Write(buf[:n])
		if err != nil {
			break
		}
	}
	cmd.Wait()
	return time.Since(t)
}

// memory is a line of /proc/PID/status, in KB.
func memory(pid int, what string) float64 {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	_, rest, _ := strings.Cut(string(b), what+":")
	line, _, _ := strings.Cut(rest, "\n")
	kb, _ := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(line), " kB"), 64)
	return kb
}

// BenchmarkFootprint measures the start, the list, and the memory at rest.
func BenchmarkFootprint(b *testing.B) {
	s := start(b, withListen("unix:"+filepath.Join(scratch(b), "s")))
	s.run("true")
	s.run("true", m{"mode": "stdio"})
	sum := func(what string) float64 {
		return (memory(s.cmd.Process.Pid, what) + memory(s.runner(), what)) / 1024
	}
	many := func(n int) {
		var wg sync.WaitGroup
		for c := range 4 {
			wg.Go(func() {
				for range n / 4 {
					if err := s.try("POST", "/v1/jobs/run", m{"script": "echo hi", "mode": modes[c%2]}, nil); err != nil {
						b.Error(err)
					}
				}
			})
		}
		wg.Wait()
		s.http.CloseIdleConnections()
	}
	for b.Loop() {
		b.ReportMetric(sum("VmRSS"), "idle_rss_MB")
		b.ReportMetric(sum("RssAnon"), "idle_anon_MB")
		many(1000)
		var starts, lists []time.Duration
		for range 15 {
			s.stop()
			t := time.Now()
			s.launch()
			for {
				if resp, err := s.http.Get(s.url + "/healthz"); err == nil {
					resp.Body.Close()
					if resp.StatusCode == http.StatusOK {
						break
					}
				}
			}
			starts = append(starts, time.Since(t))
			for range 10 {
				t = time.Now()
				s.call("GET", "/v1/jobs?limit=200", nil, nil)
				lists = append(lists, time.Since(t))
			}
		}
		b.ReportMetric(percentile(starts, 50), "start_1000_kept_ms")
		b.ReportMetric(percentile(lists, 50), "list200_ms")
		s.run("true")
		was := sum("VmRSS")
		many(2000)
		b.ReportMetric(sum("VmRSS")-was, "rss_after_2000_jobs_MB")
	}
	b.ReportMetric(0, "ns/op")
}

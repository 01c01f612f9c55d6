package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// first sends all of a scenario to the first queue that it knows of, so that offsets are the same each time.
func first() producer.Option {
	return producer.WithQueueSelector(producer.NewManualQueueSelector())
}

func (s *scene) to(queue int, message *primitive.Message) *primitive.Message {
	message.Queue = &primitive.MessageQueue{Topic: s.topic, BrokerName: "broker-a", QueueId: queue}
	return message
}

func sendSync(s *scene) {
	p := s.producer(first())
	answers := []string{}
	for number := range 6 {
		body := fmt.Sprintf("m%d", number)
		if number == 5 {
			body += strings.Repeat("x", 6000)
		}
		message := s.to(number%2, s.message("TagA", fmt.Sprintf("k%d", number), body))
		message.WithProperty("colour", "red")
		answers = append(answers, answer(p.SendSync(context.Background(), message)))
	}
	s.said["answers"] = answers
	s.said["queue 99"] = answer(p.SendSync(context.Background(), s.to(99, s.message("A", "k", "99"))))
	g := s.collect(everything)
	s.await("all", func() bool { return g.count() >= 6 })
	bodies := []string{}
	for _, body := range g.bodies() {
		bodies = append(bodies, strings.ReplaceAll(body, strings.Repeat("x", 6000), "+6000"))
	}
	s.said["got"] = bodies
	for _, each := range g.messages {
		if string(each.Body) == "m0" {
			s.said["properties"] = s.properties(&each.Message)
			s.said["system flag, born at"] = fmt.Sprint(each.SysFlag, " ", strings.Split(each.BornHost, ":")[0])
		}
	}
}

func sendBatch(s *scene) {
	p := s.producer()
	result, err := p.SendSync(context.Background(), s.message("A", "k0", "b0"), s.message("B", "k1", "b1"), s.message("A", "k2", "b2"))
	s.said["answer"] = answer(result, err)
	check(err)
	s.said["ids"] = len(strings.Split(result.MsgID, ","))
	s.said["ids of the broker"] = len(strings.Split(result.OffsetMsgID, ","))
	g := s.collect(everything)
	s.await("all", func() bool { return g.count() >= 3 })
	s.said["got"] = g.bodies()
	offsets := map[string]int64{}
	for _, each := range g.messages {
		offsets[string(each.Body)] = each.QueueOffset
		if string(each.Body) == "b0" {
			s.said["properties of the first, without an id"] = s.properties(&each.Message)
		}
	}
	s.said["offsets"] = offsets
}

func sendAsync(s *scene) {
	p := s.producer()
	var group sync.WaitGroup
	var lock sync.Mutex
	answers := []string{}
	for number := range 10 {
		group.Add(1)
		check(p.SendAsync(context.Background(), func(_ context.Context, result *primitive.SendResult, err error) {
			lock.Lock()
			if err != nil {
				answers = append(answers, failure(err))
			} else {
				answers = append(answers, fmt.Sprint("status ", result.Status))
			}
			lock.Unlock()
			group.Done()
		}, s.message("A", "k", fmt.Sprintf("a%d", number))))
	}
	group.Wait()
	s.said["answers"] = sorted(answers)
	g := s.collect(everything)
	s.await("all", func() bool { return g.count() >= 10 })
	s.said["got"] = g.bodies()
}

func sendOneway(s *scene) {
	p := s.producer()
	for number := range 10 {
		check(p.SendOneWay(context.Background(), s.message("A", "k", fmt.Sprintf("o%d", number))))
	}
	g := s.collect(everything)
	s.await("all", func() bool { return g.count() >= 10 })
	s.said["got"] = g.bodies()
}

func sendDelayed(s *scene) {
	p := s.producer()
	g := s.collect(everything)
	answer(p.SendSync(context.Background(), s.message("A", "k", "at once")))
	s.await("the first", func() bool { return g.count() >= 1 })
	message := s.message("A", "k", "after 1 s")
	message.WithDelayTimeLevel(1)
	sent := time.Now()
	_, err := p.SendSync(context.Background(), message)
	check(err)
	s.await("the other", func() bool { return g.count() >= 2 })
	took := g.times["after 1 s"].Sub(sent)
	s.said["not early, not late"] = []bool{took >= 950*time.Millisecond, took < 5*time.Second}
	s.said["properties"] = s.properties(&g.messages[1].Message)
}

type listening struct {
	lock  sync.Mutex
	asked []string
}

func (l *listening) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	switch string(message.Body) {
	case "committed":
		return primitive.CommitMessageState
	case "rolled back":
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}

func (l *listening) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	l.lock.Lock()
	defer l.lock.Unlock()
	l.asked = append(l.asked, string(message.Body))
	return primitive.CommitMessageState
}

func sendTransactions(s *scene) {
	l := &listening{}
	p, err := rocketmq.NewTransactionProducer(l, producer.WithNameServer(s.names), producer.WithGroupName(s.group+"_t"),
		producer.WithInstanceName(s.instance()))
	check(err)
	check(p.Start())
	s.ends = append(s.ends, p.Shutdown)
	g := s.collect(everything)
	answers := []string{}
	for _, body := range []string{"committed", "rolled back", "asked"} {
		result, err := p.SendMessageInTransaction(context.Background(), s.message("A", "k", body))
		check(err)
		answers = append(answers, fmt.Sprint(body, ": status ", result.Status, ", state ", result.State))
	}
	s.said["answers"] = answers
	s.await("two messages", func() bool { return g.count() >= 2 })
	time.Sleep(time.Second) // in which the third must not come
	s.said["got"] = g.bodies()
	l.lock.Lock()
	s.said["asked"] = l.asked[:1]
	l.lock.Unlock()
}

func sendRequest(s *scene) {
	p := s.producer()
	replying := s.producer()
	g := &got{times: map[string]time.Time{}, tries: map[string][]int32{}}
	s.push(everything, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		g.add(messages)
		for _, each := range messages {
			if each.GetTags() == "answer" {
				reply, err := consumer.CreateReplyMessage(each, []byte("re: "+string(each.Body)))
				if err == nil {
					_, _ = replying.SendSync(context.Background(), reply)
				}
			}
		}
		return consumer.ConsumeSuccess, nil
	})
	_, err := p.SendSync(context.Background(), s.message("plain", "k", "first"))
	check(err)
	s.await("the consumer", func() bool { return g.count() >= 1 })
	time.Sleep(2 * time.Second) // the producer's heartbeat, by which the broker finds its connection, may come late
	reply, err := p.Request(context.Background(), 10*time.Second, s.message("answer", "k", "question"))
	check(err)
	s.said["a reply to its correlation id"] = reply.GetProperty("CORRELATION_ID") != "" // this client loses the body
	_, err = p.Request(context.Background(), time.Second, s.message("silent", "k", "?"))
	s.said["nobody answers"] = err != nil
}

package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// fill sends to each queue of both brokers: each messages, tagged A, B, C in turn, with a property of their number.
func (s *scene) fill(each int) {
	p := s.producer(first())
	for queue := range 4 {
		for number := range each {
			message := s.message("ABC"[number%3:number%3+1], "k", fmt.Sprintf("m%d-%d", queue, number))
			message.WithProperty("n", fmt.Sprint(number))
			message.Queue = &primitive.MessageQueue{Topic: s.topic, BrokerName: []string{"broker-a", "broker-b"}[queue/2], QueueId: queue % 2}
			_, err := p.SendSync(context.Background(), message)
			check(err)
		}
	}
}

func pushTags(s *scene) {
	s.fill(3)
	g := s.collect(consumer.MessageSelector{Type: consumer.TAG, Expression: "A || C"})
	s.await("all of two tags", func() bool { return g.count() >= 8 })
	time.Sleep(300 * time.Millisecond)
	s.said["got"] = g.bodies()
}

func pushSQL(s *scene) {
	s.fill(4)
	g := s.collect(consumer.MessageSelector{Type: consumer.SQL92, Expression: "n > 1 AND n < 3"})
	s.await("those that fit", func() bool { return g.count() >= 4 })
	time.Sleep(300 * time.Millisecond)
	s.said["got"] = g.bodies()
}

func pushOrderly(s *scene) {
	s.fill(10)
	g := s.collect(everything, consumer.WithConsumerOrder(true))
	s.await("all", func() bool { return g.count() >= 40 })
	time.Sleep(300 * time.Millisecond)
	s.said["got"] = g.count()
	s.said["ordered"] = g.ordered()
}

func pushBroadcast(s *scene) {
	s.fill(2)
	ones := s.collect(everything, consumer.WithConsumerModel(consumer.BroadCasting))
	twos := s.collect(everything, consumer.WithConsumerModel(consumer.BroadCasting))
	s.await("all for both", func() bool { return ones.count() >= 8 && twos.count() >= 8 })
	time.Sleep(300 * time.Millisecond)
	s.said["got by one"] = ones.bodies()
	s.said["got by the other"] = twos.bodies()
}

func pushFailing(s *scene) {
	p := s.producer()
	g := &got{times: map[string]time.Time{}, tries: map[string][]int32{}}
	s.push(everything, func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		g.add(messages)
		if given, ok := primitive.GetConcurrentlyCtx(ctx); ok {
			given.DelayLevelWhenNextConsume = 1
		}
		if string(messages[0].Body) == "fails once" && messages[0].ReconsumeTimes == 0 {
			return consumer.ConsumeRetryLater, nil
		}
		return consumer.ConsumeSuccess, nil
	})
	for _, body := range []string{"fails never", "fails once"} {
		_, err := p.SendSync(context.Background(), s.message("A", "k", body))
		check(err)
	}
	s.await("the second try", func() bool { return len(g.triesOf("fails once")) >= 2 && len(g.triesOf("fails never")) >= 1 })
	s.said["tries"] = map[string]any{"fails never": g.triesOf("fails never"), "fails once": g.triesOf("fails once")}
	for _, each := range g.messages {
		if each.ReconsumeTimes == 1 {
			s.said["properties of the second try"] = s.properties(&each.Message)
		}
	}
}

func pullPolled(s *scene) {
	s.fill(2)
	made, err := rocketmq.NewPullConsumer(consumer.WithNameServer(s.names), consumer.WithGroupName(s.group), consumer.WithInstance(s.instance()),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	check(err)
	check(made.Subscribe(s.topic, everything))
	check(made.Start())
	s.ends = append(s.ends, made.Shutdown)
	bodies := []string{}
	s.await("all", func() bool {
		given, err := made.Poll(context.Background(), 200*time.Millisecond)
		if err == nil && given != nil {
			for _, each := range given.GetMsgList() {
				bodies = append(bodies, string(each.Body))
			}
			made.ACK(context.Background(), given, consumer.ConsumeSuccess)
		}
		return len(bodies) >= 8
	})
	s.said["got"] = sorted(bodies)
}

var admins sync.Mutex // the client keeps one for all

func adminTopics(s *scene) {
	admins.Lock()
	defer admins.Unlock()
	made, err := admin.NewAdmin(admin.WithResolver(primitive.NewPassthroughResolver(s.names)))
	check(err)
	s.ends = append(s.ends, made.Close)
	queues, err := made.FetchPublishMessageQueues(context.Background(), s.topic)
	check(err)
	s.said["queues"] = len(queues)
	listed, err := made.FetchAllTopicList(context.Background())
	check(err)
	found := 0
	for _, each := range listed.TopicList {
		if each == s.topic {
			found++
		}
	}
	s.said["listed"] = found
	_, err = made.FetchPublishMessageQueues(context.Background(), s.topic+"_unknown")
	s.said["an unknown topic is an error"] = err != nil
}

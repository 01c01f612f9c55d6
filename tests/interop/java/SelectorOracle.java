import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.filter.expression.BooleanExpression;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.parser.SelectorParser;
import org.apache.rocketmq.filter.parser.SelectorParserConstants;

/**
 * Answers what RocketMQ's own SQL filter says.
 *
 * <p>Standard input: a case a line, fields between tabs, each URL encoded: the expression, then name and value of each
 * property. Standard output: a line each, TRUE, FALSE, NULL or EVAL (evaluation raised), or PARSE (no expression).
 * " TRAILING" follows where the parser stopped before the end of the text.
 */
public final class SelectorOracle {
    /** The parser, with a view on what it left unread. */
    private static final class Probe extends SelectorParser {
        Probe(String text) {
            super(text);
        }

        boolean stopsEarly() {
            try {
                parse();
                return getNextToken().kind != SelectorParserConstants.EOF;
            } catch (Exception | Error broken) {
                return true;
            }
        }
    }

    private static final class Properties implements EvaluationContext {
        final Map<String, Object> values = new HashMap<>();

        @Override
        public Object get(String name) {
            return values.get(name);
        }

        @Override
        public Map<String, Object> keyValues() {
            return values;
        }
    }

    private static String answer(String[] fields) {
        String text = URLDecoder.decode(fields[0], StandardCharsets.UTF_8);
        Properties properties = new Properties();
        for (int index = 1; index + 1 < fields.length; index += 2) {
            properties.values.put(URLDecoder.decode(fields[index], StandardCharsets.UTF_8),
                URLDecoder.decode(fields[index + 1], StandardCharsets.UTF_8));
        }
        BooleanExpression expression;
        try {
            expression = SelectorParser.parse(text);
        } catch (Exception | Error refused) {
            return "PARSE";
        }
        String result;
        try {
            result = String.valueOf(expression.evaluate(properties)).toUpperCase();
        } catch (Exception | Error failed) {
            result = "EVAL";
        }
        return new Probe(text).stopsEarly() ? result + " TRAILING" : result;
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream output = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            output.println(answer(line.split("\t", -1)));
        }
        output.flush();
    }
}

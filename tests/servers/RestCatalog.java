import java.io.File;
import java.net.InetSocketAddress;
import java.util.Map;
import org.apache.iceberg.Files;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.InputFile;
import org.apache.iceberg.io.OutputFile;
import org.apache.iceberg.jdbc.JdbcCatalog;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.servlet.ServletContextHandler;
import org.eclipse.jetty.servlet.ServletHolder;

/** Iceberg's own REST catalog of its tests, over SQLite and local files: PORT FOLDER. */
public class RestCatalog {
  public static void main(String[] given) throws Exception {
    JdbcCatalog catalog = new JdbcCatalog();
    catalog.initialize(
        "rest",
        Map.of(
            "uri", "jdbc:sqlite:" + given[1] + "/catalog.db",
            "warehouse", given[1] + "/lake",
            "jdbc.schema-version", "V1",
            "io-impl", LocalFiles.class.getName()));
    ServletContextHandler paths = new ServletContextHandler();
    paths.addServlet(new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(catalog))), "/*");
    Server server = new Server(new InetSocketAddress("127.0.0.1", Integer.parseInt(given[0])));
    server.setHandler(paths);
    server.start();
    server.join();
  }

  /** Files without Hadoop. */
  public static class LocalFiles implements FileIO {
    @Override
    public InputFile newInputFile(String location) {
      return Files.localInput(path(location));
    }

    @Override
    public OutputFile newOutputFile(String location) {
      return Files.localOutput(path(location));
    }

    @Override
    public void deleteFile(String location) {
      new File(path(location)).delete();
    }

    private static String path(String location) {
      return location.replaceFirst("^file:(//)?", "");
    }
  }
}
